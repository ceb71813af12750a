//! Every reason with an example, and that `docs/explanations.md` has them all as they are said.

use std::time::Duration;

use crate::{
    Absence, Arrival, Awaited, Moment, Names, Others, Place, Presence, Published, Reason, Said, Sighting,
    Silence, Standing, Unit,
};
use rallypoint_api::{Certainty, ExpectedFrom, RunKind, Severity};
use rallypoint_protocol::ids::Elapsed;

fn names(names: &[&str]) -> Names {
    Names::of(names.iter().map(|name| (*name).to_owned()))
}

/// An example of each kind, with when it is said.
fn examples() -> Vec<(Reason, &'static str)> {
    let secs = |secs: f64| Elapsed(Duration::from_secs_f64(secs));
    let (node, rank) = ("train-llm-2 (node rank 2)".to_owned(), "rank 2 on train-llm-1".to_owned());
    let from = Some(ExpectedFrom::Announced);
    let awaited = |presence: Presence, waiters| {
        let (missing, ended, elsewhere, apart, staying) = Default::default();
        Awaited {
            seen: Sighting::from(presence),
            missing,
            ended,
            elsewhere,
            apart,
            staying,
            waiters,
            waited: secs(30.0),
        }
    };
    vec![
        (
            Reason::RunStarted { who: "train-llm-0".into(), expected: Some(4), from, first_ended: None },
            "The first node of a round has joined, or the first rank of a run without agents has come.",
        ),
        (
            Reason::RoundComplete {
                nodes: 4,
                took: secs(38.2),
                last: "train-llm-2".into(),
                last_after: secs(31.0),
                dead: Names::default(),
            },
            "All nodes of a round are there. An error if the c10d backend counts nodes that died while joining (`dead`): torch notices that when their heartbeats expire.",
        ),
        (
            Reason::RanksComplete { ranks: 32, took: secs(2.4), last: rank.clone(), last_after: secs(2.4) },
            "All worker ranks have published their addresses here. Only if the workers use this server, with gloo.",
        ),
        (
            Reason::RunFinished { nodes: 4, ran: secs(7200.0) },
            "All agents have arrived at the exit barrier. A native run has finished when all nodes of the round have left and said that they succeeded, as the torchrun plugin does.",
        ),
        (
            Reason::RunEnded { processes: 32, ran: secs(7200.0), first: None },
            "Ranks without agents: the connections of all have closed, after all had published their addresses (or an NCCL id was). Success and failure look the same here. A rank that ended 0.2 s or more before all others is named (`first`).",
        ),
        (
            Reason::PodsMissing {
                announced: 3,
                expected: 4,
                missing: names(&["pod train-llm-2 with rank 2"]),
                gone: names(&[]),
                refused: names(&[]),
                apart: Names::default(),
                waited: secs(41.0),
            },
            "Pods are held back before PyTorch starts in them (`rallypoint run`, `wait --nodes`), because others have not \
             announced themselves, or were turned away.",
        ),
        (
            Reason::PodsIdle {
                pods: 3,
                gone: names(&["train-llm-2 (its relay left 15 s ago)"]),
                unheard: 0,
                silent: None,
                waited: secs(41.0),
            },
            "All pods have passed the start gate, and no process of them has connected: they import, load or hang, or have ended. A note, and a warning if a relay has left or its link is away. Pods without relays are not heard of (`unheard`), and forgotten after 10 minutes.",
        ),
        (
            Reason::TorchVersionsDiffer { versions: "2.14.0 (train-llm-1), 2.15.0 (train-llm-0)".into() },
            "Pods announced different versions of PyTorch.",
        ),
        (
            Reason::NodesMissing {
                joined: 3,
                expected: Some(4),
                from,
                missing: names(&["train-llm-2"]),
                announced: names(&["train-llm-2: announced itself"]),
                gone: names(&[]),
                connected: names(&[]),
                present: names(&["train-llm-0", "train-llm-1", "train-llm-3"]),
                apart: names(&[]),
                first: secs(41.0),
                waited: secs(41.0),
            },
            "A round is not complete. Missing nodes are named if they announced themselves, were in an earlier round, or have a known rank; else the nodes that are there are named. Nodes that died or are not heard from are told apart (`gone`), and so are those that are still busy with the round before (`connected`). Another run that is not complete either is named if both together have as many nodes as each expects: it may be one job, with a slip in an id. A static run without node rank 0 is told as `waiting`.",
        ),
        (
            Reason::RoundNotComplete {
                joined: 4,
                expected: 4,
                from: ExpectedFrom::Announced,
                asks_for_more: None,
                is_gone: false,
                asks_for_other: Some("train-llm-2".into()),
                waited: secs(30.0),
            },
            "The expected number of nodes has joined, but none of them completes the round. This happens with torch 2.15 when their --nnodes differ.",
        ),
        (
            Reason::NodeCameLate {
                node: "train-llm-2".into(),
                nodes: 1,
                arrival: Arrival::First,
                after: secs(58.0),
                joined: 4,
                expected: Some(4),
            },
            "A node that was reported missing has joined. If it had been in the round before (`arrival`: `again`), the time is since it was gone. If others had taken it out of a complete round and it is heard from again, it goes on with its ranks (`back`).",
        ),
        (
            Reason::Lost {
                nodes: names(&[&node]),
                cut_off: false,
                links: names(&[]),
                moment: Some(Moment::RoundComplete),
                left: 3,
                expected: Some(4),
                unit: Unit::Node,
                backend: RunKind::C10d,
                gave_up: false,
            },
            "The connection of an agent that had not finished closed, or it was given up (`cut_off`): its link was away for \
             longer than `serve --link-grace`, or without a relay its host answered nothing for 20 s. The node itself may be \
             alive then. A warning if it had given up on others just before (`gave_up`). In jobs without agents contact with \
             ranks is lost so.",
        ),
        (
            Reason::NodeRemoved {
                nodes: names(&["train-llm-2 (node rank 2)"]),
                by: "train-llm-0 (node rank 0)".into(),
                silent: secs(15.0),
                why: Silence::Connected,
                left: 2,
                joining: false,
            },
            "A torchrun agent is connected, but has sent no heartbeat for 15 s (`keep_alive_interval` and its maximum), and another agent took it out of the round. Nobody is told to restart. If the link of its relay is away, or the server was restarted, that is named as the cause.",
        ),
        (
            Reason::NoHeartbeat {
                nodes: names(&["train-llm-2 (node rank 2)"]),
                silent: secs(11.0),
                standing: Standing::InRound { others: Others::Send },
            },
            "A torchrun agent is connected and waits for nothing here, but has missed two heartbeats. The time between two is learned from the run: 5 s, unless `keep_alive_interval` says otherwise.",
        ),
        (
            Reason::LinkAway {
                links: names(&["train-llm-2"]),
                clients: 8,
                addr: Some("10.0.0.7".into()),
                why: Some("the relay closed the connection".into()),
                away: secs(4.0),
                grace: secs(10.0),
            },
            "The connection between a relay and the server is broken for longer than 2 s. The relay holds its clients, and they notice a pause.",
        ),
        (
            Reason::LinkLost { links: names(&["train-llm-2"]), clients: 8, grace: secs(10.0) },
            "A link was away for longer than `serve --link-grace`: the sessions of its clients are over.",
        ),
        (
            Reason::RelayRefused {
                relay: "train-llm-2".into(),
                from: [10, 0, 0, 7].into(),
                other: [10, 0, 0, 5].into(),
            },
            "Two relays have one name: an old pod that has not ended, or pods without names of their own. The later one is turned away, and tries again. Said at most once a minute.",
        ),
        (
            Reason::RankLost {
                ranks: names(&[&rank]),
                then: names(&["rank 3 on train-llm-1"]),
                unseen: names(&[]),
                joined: 2,
                world_size: Some(4),
                gave_up: false,
                times: 1,
                go_on: false,
            },
            "A worker's connection closed, before all ranks had published their addresses. torchrun's agents then end the other ranks of the node (`then`). A rank of it that had not come (`unseen`) may have failed first.",
        ),
        (
            Reason::WorkersRestarted {
                nodes: names(&["node 1 at 10.0.0.12"]),
                times: 1,
                first_ended: Some((rank.clone(), secs(0.2))),
            },
            "An agent of the static rendezvous tells its role again while the round is complete: one of its workers failed, and it starts all of them again (`--max-restarts`). The ranks that had met with them have to come again, too.",
        ),
        (
            Reason::AddressesDropped { ranks: names(&["rank 0 on train-llm-0", "rank 1 on train-llm-0"]) },
            "An operator reset the store while ranks waited there for others, which will not find the addresses of those.",
        ),
        (
            Reason::EndedUnpublished {
                processes: names(&[
                    "process 11 at 10.0.0.5 (after 0.2 s)",
                    "process 12 at 10.0.0.5 (after 0.3 s)",
                ]),
                port: 29500,
            },
            "Processes counted themselves in a store, as `env://` and `tcp://` do, and ended without more, and nobody is there who waits for them.",
        ),
        (
            Reason::RanksEnded { ranks: names(&[&rank]), left: 3, since: secs(31.0), soon: None },
            "Some processes have ended, or left their process group, and others have gone on for longer than --explain-after; with torchrun's agents, while these have done nothing about it. NCCL ranks tell no rank, so processes are named, with their nodes; rank 0 is who published the NCCL id. A warning if a rank ended within 10 s after all had published their addresses.",
        ),
        (
            Reason::RanksMissing {
                came: 3,
                world_size: 4,
                missing: names(&["rank 2 on train-llm-1"]),
                beside: names(&["process 815 at 10.0.0.6"]),
                waited: secs(31.0),
            },
            "With agents and NCCL: rank 0 has published the id, and some ranks have not asked for it. Which ones is known where each node has an address of its own.",
        ),
        (
            Reason::AllLeft { members: 4, unit: Unit::Node, finished: 0, first: Some(rank.clone()) },
            "All connections of a run closed within seconds, and it had not finished. `first` is what ended first, a rank or the agent of a static node.",
        ),
        (
            Reason::NotBack {
                who: names(&["train-llm-0", "train-llm-1"]),
                may_go_on: false,
                restarted: secs(30.0),
            },
            "With a journal: those who were connected to the last server have not come back 30 s after this one was started. Without a relay no process connects again, so each fails at its next request. Information only if all had met and use the store no more until they end (`env://` and static agents).",
        ),
        (
            Reason::Waiting {
                who: "rank 2".into(),
                what: "the address".into(),
                place: Place::Rank,
                published: Some(Published { joined: 3, connected: 3, world_size: Some(4) }),
                awaited: awaited(Presence::NeverSeen, 3),
            },
            "Waits that all lead to one rank, or to the agent of one node: to its gloo address, its NCCL id, its role, the \
             addresses or the ranks that it is to hand out. `presence` is what was seen of it last, `behind` what was seen of \
             its node or pod, `but` why it does not write it although it is there, `candidates` are processes that have told no \
             rank.",
        ),
        (
            Reason::WaitingForProcesses {
                host: "rank 0 (process 12 at 10.0.0.5)".into(),
                of_agents: false,
                connected: 3,
                ended: 0,
                reset: None,
                expected: Some(4),
                gone: names(&[]),
                missing: names(&["rank 2"]),
                silent: names(&[]),
                passed: names(&[]),
                elsewhere: names(&[]),
                waiters: 2,
                waited: secs(30.0),
            },
            "Rank 0, or the agent of node rank 0, hosts a store of its own, as it was not told to be a client. It publishes nothing before as many processes as it expects have connected here. How many that are is only known if others tell.",
        ),
        (
            Reason::WaitingForGroup {
                what: "the address of rank 2 of the sub-group tp".into(),
                waiters: 2,
                others: names(&["rank 2 on train-llm-1"]),
                ended: names(&[]),
                waited: secs(30.0),
            },
            "Waits at a store-based barrier, for a member of a sub-group, or in a group with a prefix of the program's own. Named are all processes of the run that do not wait there; a sub-group may be of some of them only.",
        ),
        (
            Reason::WaitingForKey {
                key: "data_redy".into(),
                who: names(&["rank 1 on train-llm-1", "rank 2 on train-llm-1"]),
                besides: names(&[]),
                similar: Some("data_ready".into()),
                others: names(&["rank 0 on train-llm-0"]),
                ended: names(&[]),
                absence: Absence::NotWritten,
                waited: secs(30.0),
            },
            "Ranks or agents wait for a key of the program's own. Some programs do so for long, so it is a note. Named are a key that differs by one slip, who deleted the key, and the processes of the run that do not wait there or have ended.",
        ),
        (
            Reason::WaitingAtBarrier {
                barrier: "checkpoint".into(),
                who: names(&["rank 0 on train-llm-0", "rank 1 on train-llm-0"]),
                size: None,
                too_large: false,
                others: names(&["rank 2 on train-llm-1"]),
                ended: names(&["rank 3 on train-llm-1 (12 s ago)"]),
                waited: secs(30.0),
            },
            "Ranks or agents wait at a barrier of the program: a BARRIER, or one of `torch.distributed.elastic.utils.store`. Named are all processes of the run that do not wait there; it may be for some of them only.",
        ),
        (
            Reason::DuplicateRank {
                what: "node rank 1".into(),
                first: "node 1 at 10.0.0.5".into(),
                second: "process 12 at 10.0.0.9".into(),
                more: Names::default(),
                others: Names::default(),
            },
            "Two live processes or more wrote the same rank's key. `others` has more such ranks.",
        ),
        (
            Reason::TwoJobs {
                first: "run a".into(),
                second: "run b".into(),
                evidence: "their workers use the same keys".into(),
            },
            "Two static runs have agents in one store, or every rank's address was written by two live processes.",
        ),
        (
            Reason::TwoBackends {
                first: "rallypoint (train-llm-0)".into(),
                second: "c10d (train-llm-1 and train-llm-2)".into(),
            },
            "Nodes with the same run id use different backends: some torchrun's c10d, others static or the plugin.",
        ),
        (
            Reason::FewerThanExpected {
                formed: 2,
                expected: 4,
                from: ExpectedFrom::Flag,
                left_over: names(&["train-llm-2", "train-llm-3"]),
            },
            "A c10d round is complete with fewer nodes than an operator, the pods or `serve --nodes` say. A node was started with a smaller --nnodes.",
        ),
        (
            Reason::NnodesDiffer {
                newcomers: names(&["train-llm-2"]),
                group: 2,
                other: "train-llm-1 (node rank 1)".into(),
            },
            "A node waits for the next round beside a complete c10d round of as many nodes as the last agent asks for: the newcomer has another `--nnodes`. torch restarts all workers for it, and the next round may never be complete.",
        ),
        (
            Reason::LeftOver {
                group: 2,
                left_over: names(&["train-llm-2"]),
                staying: Names::default(),
                dead: Names::default(),
                redundant: false,
                fewer: false,
                waited: secs(30.0),
            },
            "Nodes wait beside a complete round, or ask for fewer nodes than it has. Only a note for spares beyond the maximum, and until torch has noticed that members are dead. If members of the round are among them, those that are still in it are named.",
        ),
        (
            Reason::WorldSizesDiffer {
                rank: 0,
                says: 2,
                ranks: names(&["rank 0"]),
                other_rank: 2,
                other_says: 4,
                others: names(&["rank 2", "rank 3"]),
                have_met: false,
            },
            "The gloo addresses of some ranks have sizes that belong to different world sizes.",
        ),
        (
            Reason::NodeRankBeyond { node: "node 2 at 10.0.0.7".into(), rank: 2, nodes: 2 },
            "In a static run a node has come whose rank is not below the number of nodes that rank 0 expects.",
        ),
        (
            Reason::AnnouncementsDiffer {
                pod: "a".into(),
                says: "2".into(),
                other_pod: "b".into(),
                other_says: "2:3".into(),
            },
            "Two pods of a run announced different numbers of nodes.",
        ),
        (
            Reason::RunIsClosed {
                newcomers: names(&["process 12 at 10.0.0.9"]),
                closed_for: secs(6.0),
                by: Some("train-llm-0 (node rank 0)".into()),
                finished: true,
            },
            "Agents have come to a run whose state says `closed`: torchrun ends them at once. Of one address it is said again after ten minutes.",
        ),
        (
            Reason::ClosedIncomplete {
                joined: 3,
                expected: Some(4),
                missing: names(&["train-llm-2"]),
                present: names(&["train-llm-0", "train-llm-1", "train-llm-3"]),
                by: "train-llm-0".into(),
            },
            "The first node whose join time-out ended closed the run. torchrun tells the others only that it is closed.",
        ),
        (
            Reason::ClosedUnfinished {
                finished: 0,
                nodes: 4,
                by: "train-llm-2 (node rank 2)".into(),
                running: names(&[
                    "train-llm-0 (node rank 0)",
                    "train-llm-1 (node rank 1)",
                    "train-llm-3 (node rank 3)",
                ]),
            },
            "An agent closed the run after a failure, or because it was stopped.",
        ),
        (Reason::RunRestarted {}, "A run that had finished has a client again under the same id."),
        (
            Reason::StaleAddress {
                reader: "process 12 at 10.0.0.9".into(),
                key: "/default_pg/0//cpu//0/0".into(),
                gone_for: secs(12.0),
            },
            "Only with `--drop-spent off`; else such addresses are dropped and their readers wait for the new ones.",
        ),
        (
            Reason::ElasticDeadlock {
                newcomer: "train-llm-3 (node rank 2)".into(),
                rank_zero: "train-llm-0 (node rank 0)".into(),
                waited: secs(2.0),
            },
            "A fresh node joined a running c10d job of torch 2.15 whose rank 0 stays: rank 0 does not publish the \
             workers' address again.",
        ),
        (
            Reason::WaitCycle { members: names(&["train-llm-0", "train-llm-1"]), waited: secs(2.0) },
            "Any other case in which processes wait for each other in a circle.",
        ),
        (
            Reason::GaveUp {
                who: names(&["rank 1 on train-llm-0", "rank 3 on train-llm-1"]),
                key: "/default_pg/0//cpu//0/2".into(),
                waited: secs(300.0),
                writer: "rank 2".into(),
                missing: Names::default(),
                similar: None,
                others: Names::default(),
                ended: Names::default(),
                reset: None,
                again: false,
            },
            "A client cancelled its wait, which it does when its time-out has passed. All that gave up on one key are reported together, with what was said of the wait.",
        ),
        (
            Reason::ForeignClient {
                peer: "10.0.0.9".into(),
                protocol: "HTTP".into(),
                port: 29500,
                times: 3,
                ago: secs(180.0),
            },
            "The first bytes of a connection to a store's port are HTTP or TLS.",
        ),
        (
            Reason::StoreClientAtAdmin {
                peer: "10.0.0.9".into(),
                port: 29501,
                stores: names(&["29500"]),
                times: 3,
                ago: secs(2.0),
            },
            "The first bytes of a connection to the admin port are those of a PyTorch store (2.2 or later).",
        ),
        (
            Reason::WorkersElsewhere { address: "train-llm-0:43123".into() },
            "The ordinary case of the c10d backend: rank 0's agent hosts a store for the workers. Reported once for each run.",
        ),
        (
            Reason::ExitBarrier {
                arrived: 3,
                nodes: Some(4),
                running: names(&[&node]),
                taken_out: Names::default(),
                dead: Names::default(),
                not_back: Names::default(),
                silent: Names::default(),
                waited: secs(121.0),
            },
            "Some agents have finished and wait for the others. A note for the first two minutes, if nobody is dead, silent or taken out of the round.",
        ),
        (
            Reason::StateDropped { run_id: "train-llm".into(), waiters: 4, waited: secs(31.0) },
            "c10d agents are connected, and what they share was dropped by `rallypoint ctl reset` or `ctl forget`. They hang.",
        ),
        (
            Reason::StoreClosed { round: 2, met: Some(false), since: secs(31.0) },
            "`rallypoint ctl reset` closes the store of a native round, and its processes are disconnected. A note where all ranks had met, or do not tell (NCCL).",
        ),
        (
            Reason::WatchdogFired { who: "rank 3".into() },
            "A rank wrote `exception_dump` or `remote_error`: NCCL's watchdog does so when a collective times out.",
        ),
        (
            Reason::UnreadableState { detail: "the state is not base64".into() },
            "The value under `/torch.rendezvous.RUN` is not what torchrun writes.",
        ),
        (
            Reason::StandsBy {
                spares: names(&["train-llm-4"]),
                max_nodes: 4,
                unreported: 0,
                given_up: None,
                waited: secs(30.0),
            },
            "Native runs: nodes beyond the maximum wait beside a complete round. They are spares, and nothing is wrong.",
        ),
        (
            Reason::WaitsForRank {
                node: "train-llm-2b".into(),
                holder: "train-llm-2 (node rank 2)".into(),
                waited: secs(30.0),
            },
            "Native runs: a node asks for the rank of a node that has not left, but may be dead.",
        ),
        (
            Reason::BarrierWaits {
                barrier: "train-llm/epoch".into(),
                arrived: 2,
                size: 3,
                there: names(&["train-llm-0", "train-llm-1"]),
                missing: names(&["train-llm-2"]),
                silent: names(&[]),
                gave_up: names(&[]),
                waited: secs(30.0),
            },
            "Participants wait at a barrier of the native rendezvous (`rallypoint barrier`). Who is missing is known if the members were given. Who has arrived and is gone is told apart, and so is who gave up (`gave_up`).",
        ),
    ]
}

/// What only the native rendezvous tells. Its other facts have the codes above.
fn native_examples() -> Vec<(Reason, &'static str)> {
    use rallypoint_protocol::ids::Label;
    use rallypoint_protocol::ids::RunId;
    use rallypoint_rendezvous::{Break, Fact, RunRefusal, Who};
    let label = |text: &str| Label::new(text).expect("a label");
    let who = || Who { name: label("train-llm-2"), address: label("10.0.0.3") };
    let broken = |why| Fact::Broken { round: 3, why, left: 2, restarted: None };
    let seconds = Duration::from_secs;
    let all = [
        (
            broken(Break::Left {
                who: who(),
                rank: 2,
                why: Some(label("pod is being deleted")),
                since: seconds(2),
                then: Vec::new(),
            }),
            "Native runs: a node of the round has left. Others that leave within 2 s are told with it.",
        ),
        (
            broken(Break::Rejoined { who: who(), rank: 2 }),
            "Native runs: a node of the round joined again, because workers failed or it was started again. A node that is silent is named too.",
        ),
        (
            broken(Break::Newcomers { newcomers: vec!["train-llm-4 (10.0.0.5)".into()] }),
            "Native runs: new nodes have joined, and there is room for them.",
        ),
        (
            broken(Break::Resized { nodes: 4, expected: 2 }),
            "Native runs: an operator expects fewer nodes (`rallypoint ctl expect`).",
        ),
        (
            broken(Break::Unreported { missing: 1, nodes: 4 }),
            "Native runs: after a restart of the server some nodes of the round sent nothing.",
        ),
        (
            Fact::Disconnected {
                nodes: vec!["train-llm-2 (10.0.0.3), rank 2".into()],
                again: Vec::new(),
                since: seconds(3),
                patience: seconds(15),
            },
            "Native runs: the connection of a node closed while its request waited here, and the node has not come again, as one that is alive does at once.",
        ),
        (
            Fact::Silent {
                nodes: vec!["train-llm-1 (10.0.0.2), rank 1".into(), "train-llm-2 (10.0.0.3), rank 2".into()],
                again: Vec::new(),
                since: seconds(7),
                patience: seconds(15),
            },
            "Native runs: nothing has come from a node for one and a half keep-alive times. With the defaults a node that stops while it trains is named 7.5 to 10 s later, while it joins 15 s later.",
        ),
        (
            Fact::Expiring { round: 3, left: seconds(300), missing: "1 more node is needed".into() },
            "Native runs: the time in which the round must be complete ends soon.",
        ),
        (
            Fact::Displaced {
                who: Who { name: label("worker"), address: label("10.0.0.5") },
                by: Who { name: label("worker"), address: label("10.0.0.6") },
            },
            "Native runs: a node joined with the id of another that waited, from another address, and has its place now.",
        ),
        (
            Fact::Abandoned {
                round: 3,
                who: who(),
                why: Some(label("gave up waiting")),
                missing: "1 more node is needed".into(),
            },
            "Native runs: all nodes that waited for a round have left it, the last of them by itself.",
        ),
        (
            Fact::TimedOut { round: 3, after: seconds(1800), missing: "1 more node is needed".into() },
            "Native runs: a round was not complete in time.",
        ),
        (
            Fact::Extended { round: 3, by: seconds(600), left: seconds(840) },
            "Native runs: an operator gave the round more time.",
        ),
        (
            Fact::Refused {
                who: who(),
                why: RunRefusal::Closed {
                    run: RunId::new(b"train-llm"),
                    by: "train-llm-0 (10.0.0.1): its workers have succeeded".into(),
                },
            },
            "Native runs: a node may not join: the run is closed, its rank is taken or cannot be, its parameters differ, or there are too many nodes.",
        ),
        (
            Fact::Failed {
                round: 3,
                who: who(),
                rank: 2,
                why: Some(label("its agent failed: ChildFailedError")),
                since: seconds(2),
                then: vec!["train-llm-3 (10.0.0.4), rank 3".into()],
                others: vec!["train-llm-0 (10.0.0.1)".into(), "train-llm-1 (10.0.0.2)".into()],
            },
            "Native runs: a worker failed, and its agent closed the run and left. The first failure of a round is told, with those that followed within 2 s, the nodes that are still in it, and an operator's reset of its store.",
        ),
        (
            Fact::Closed { by: "train-llm-0 (10.0.0.1): its workers have succeeded".into() },
            "Native runs: a node or an operator closed the run.",
        ),
        (
            Fact::Adopted { round: 3, nodes: 4, first: who() },
            "Native runs: the server was restarted, and goes on with the round that the nodes reported.",
        ),
        (
            Fact::MixedReleases("2.14.0 on 1, 2.15.0 on 3".into()),
            "Native runs: the nodes have different releases of PyTorch.",
        ),
        (
            Fact::NoStore {
                round: 3,
                why: "no port left for the run's store: runs use all of --store-ports, which are 100; give more with \
                      --store-ports"
                    .into(),
            },
            "Native runs: there is no store for the workers of a round.",
        ),
    ];
    all.into_iter().map(|(fact, when)| (Reason::Rendezvous(Said::of(&fact)), when)).collect()
}

fn all_examples() -> Vec<(Reason, &'static str)> {
    examples().into_iter().chain(native_examples()).collect()
}

fn page() -> String {
    let part = |(reason, when): &(Reason, &str)| {
        let severity = match reason.severity() {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let lasts = reason.lasts_for(Duration::MAX);
        let when_said = if !reason.is_waiting() || lasts.is_zero() {
            String::new()
        } else if lasts == Duration::MAX {
            ", after `--explain-after`".to_owned()
        } else {
            format!(", after `--explain-after`, or {} s if that is less", lasts.as_secs())
        };
        let how = match reason.certainty() {
            Certainty::Eliminated => ", by elimination",
            Certainty::Seen => "",
        };
        format!("### `{}` ({severity}{how}{when_said})\n\n{when}\n\n> {reason}\n", reason.code())
    };
    all_examples().iter().map(part).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_has_every_explanation_as_it_is_said() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explanations.md");
    let text = std::fs::read_to_string(path).expect("docs/explanations.md");
    let (_, codes) = text.split_once("## All of them\n\n").expect("the heading `All of them`");
    let page = page();
    if std::env::var_os("RALLYPOINT_UPDATE_DOCS").is_some() {
        let before = text.strip_suffix(codes).expect("the end of the page");
        return std::fs::write(path, format!("{before}{page}")).expect("docs/explanations.md is written");
    }
    assert!(
        codes.trim_end() == page.trim_end(),
        "RALLYPOINT_UPDATE_DOCS=1 cargo test --lib the_page_has writes this after `## All of them`:\n\n{page}<<<end"
    );
}

#[test]
fn every_code_has_an_example_and_is_the_tag_of_its_facts() {
    let examples = all_examples();
    let codes: Vec<&str> = examples.iter().map(|(reason, _)| reason.code()).collect();
    assert_eq!(codes, Reason::CODES);
    for (reason, _) in examples {
        assert!(!reason.to_string().is_empty(), "{} has no sentence", reason.code());
        // Some sentences end with what to do.
        let says_it_itself = ["join_refused", "round_adopted", "no_store"].contains(&reason.code());
        let needs_none = reason.severity() == Severity::Info || says_it_itself;
        assert!(needs_none || !reason.remedy().is_empty(), "{} has no remedy", reason.code());
        let facts = serde_json::to_value(&reason).expect("JSON");
        assert_eq!(facts["code"], reason.code());
    }
}

#[test]
fn names_are_listed_and_the_rest_counted() {
    assert_eq!(names(&[]).to_string(), "0");
    assert_eq!(names(&["a"]).to_string(), "a");
    assert_eq!(names(&["a", "b", "c"]).to_string(), "a, b and c");
    let many = Names::of((0..20).map(|n| (2 * n).to_string()));
    assert_eq!((many.to_string().as_str(), many.count()), ("0, 2, 4, 6, 8, 10, 12, 14 and 12 more", 20));
}

#[test]
fn the_example_documents_are_what_the_types_say() {
    use rallypoint_api::{Run, RunList, WaitList};
    let read = |name: &str| {
        let path = format!("{}/../../tests/data/insight/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("an example")
    };
    let list: RunList = serde_json::from_str(&read("runs.json")).expect("a list of runs");
    let codes = list.runs.iter().filter_map(|run| run.explanation.as_ref()).map(|said| said.code.as_str());
    assert!(codes.clone().count() > 0 && codes.clone().all(|code| Reason::CODES.contains(&code)));
    serde_json::from_str::<WaitList>(&read("waits.json")).expect("a list of waits");
    for name in ["run_4_nodes_one_missing.json", "run_static_rank_missing.json", "run_64_nodes.json"] {
        let text = read(name);
        let run: Run = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let again: serde_json::Value = serde_json::to_value(&run).expect("JSON");
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), "{name}");
    }
}
