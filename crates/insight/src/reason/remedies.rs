//! What to do about each reason.

use std::time::Duration;

use super::Reason;
use super::awaited::{OTHER_PORT, SAME_WORLD_SIZE};
use super::values::Moment;
use super::values::{Absence, Arrival, ONE_JOB, Others, Silence, Standing, for_each};
use crate::presence::{ANNOUNCED, AWAY, MISSING_NODE, MISSING_POD, Place, Presence};
use rallypoint_api::{ExpectedFrom, RunKind};

/// Who ends this soon may not have reached the others at the addresses that they published.
const SHORT: Duration = Duration::from_secs(5);
/// Who cannot reach the others tries for longer than this.
const AT_LEAST: Duration = Duration::from_secs(1);

const COUNTED: &str = "look at the log and events of each pod; what comes in its place cannot join this round, and the others wait for it until \
                       their time-outs: restart all agents of the job together";

impl Reason {
    /// What to do about it; empty if there is nothing to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NodesMissing { apart, .. } if !apart.is_empty() => ONE_JOB,
            Self::NodesMissing { joined, expected: Some(expected), gone, connected, .. }
                if gone.is_empty()
                    && !connected.is_empty()
                    && expected.saturating_sub(*joined) as usize <= connected.count() =>
            {
                for_each(
                    connected,
                    "look at the agent of that node: does it wait for another still, or stop its workers? It joins after that",
                    "look at the agents of those nodes: do they wait for another still, or stop their workers? They join after \
                     that",
                )
            }
            Self::NodesMissing { expected: None, gone, .. } if !gone.is_empty() => for_each(
                gone,
                "look why the node that is gone ended, or was taken out; nobody has said whether the round needs it or a \
                 replacement (rallypoint ctl expect RUN N, or serve --nodes), or whether others have another --nnodes",
                "look why the nodes that are gone ended, or were taken out; nobody has said whether the round needs them or \
                 replacements (rallypoint ctl expect RUN N, or serve --nodes), or whether others have another --nnodes",
            ),
            Self::NodesMissing { joined, expected, gone, connected, .. }
                if expected.unwrap_or(0).saturating_sub(*joined) as usize
                    <= gone.count().saturating_add(connected.count())
                    && !gone.is_empty() =>
            {
                for_each(
                    gone,
                    "look why the node that is gone ended, or was taken out; the round needs it or a replacement",
                    "look why the nodes that are gone ended, or were taken out; the round needs them or replacements",
                )
            }
            Self::NodesMissing { expected: None, .. } => {
                "tell the server how many are expected (rallypoint ctl expect RUN N, or serve --nodes), and look which \
                 pods have not started, do not reach this server, or have another --nnodes or --rdzv-id"
            }
            Self::PodsMissing { apart, .. } if !apart.is_empty() => {
                "if these are one job, start every pod with the same --run-id (RALLYPOINT_RUN_ID); else look whether the missing \
                 pods are scheduled and reach this server's admin port"
            }
            Self::PodsIdle { gone, .. } if !gone.is_empty() => for_each(
                gone,
                "look at the log of the pod that is gone: its relay leaves when its command has ended. Did an import fail, was there \
                 too little memory, was it stopped?",
                "look at the logs of the pods that are gone: their relays leave when their commands have ended. Did an import fail, \
                 was there too little memory, were they stopped?",
            ),
            Self::PodsIdle { .. } => {
                "look at the pods' logs: are they still importing, loading or downloading? The store is needed after that only"
            }
            Self::PodsMissing { missing, gone, refused, .. }
                if missing.is_empty() && gone.is_empty() && !refused.is_empty() =>
            {
                "start the pods that were turned away with the number of nodes that the others have, each with its own rank"
            }
            Self::PodsMissing { refused, .. } if !refused.is_empty() => {
                "start the pods that were turned away with the number of nodes that the others have, each with its own rank: one \
                 of them may be missing as another. Else look whether the missing pods are scheduled and reach this server's \
                 admin port"
            }
            Self::PodsMissing { announced, expected, gone, .. } if !gone.is_empty() => {
                let is_all = expected.saturating_sub(*announced) as usize <= gone.count();
                match (is_all, gone.count()) {
                    (true, 1) => {
                        "look why the pod that is gone ended: at its log and events. All start when it, or another in its place, \
                         has announced itself"
                    }
                    (true, _) => {
                        "look why the pods that are gone ended: at their logs and events. All start when they, or others in their \
                         places, have announced themselves"
                    }
                    (false, _) => {
                        "look why what is gone ended: at its log and events; and at what has been missing: is it scheduled, has its \
                         image come, does it reach this server's admin port?"
                    }
                }
            }
            Self::PodsMissing { .. } => MISSING_POD,
            Self::TorchVersionsDiffer { .. } => {
                "use one image on every node; different releases of PyTorch may not understand each other"
            }
            Self::NodesMissing { gone, .. } if !gone.is_empty() => for_each(
                gone,
                "look why the node that is gone ended, or was taken out, and at the pod of each missing node: is it \
                 scheduled, has its image come, does it reach this server?",
                "look why the nodes that are gone ended, or were taken out, and at the pod of each missing node: is it \
                 scheduled, has its image come, does it reach this server?",
            ),
            Self::NodesMissing { missing, announced, .. }
                if !announced.is_empty() && announced.count() >= missing.count() =>
            {
                ANNOUNCED
            }
            Self::NodesMissing { .. } => MISSING_NODE,
            Self::Waiting { awaited, place, .. } => awaited.remedy(*place),
            Self::WaitingForProcesses { reset: Some(_), .. } => {
                "restart all processes of the job together: those that had connected before the reset do not do so again"
            }
            Self::WaitingForProcesses { connected, expected: Some(expected), .. }
                if connected >= expected =>
            {
                SAME_WORLD_SIZE
            }
            Self::WaitingForProcesses { elsewhere, .. } if !elsewhere.is_empty() => OTHER_PORT,
            Self::WaitingForProcesses { gone, of_agents, .. } if !gone.is_empty() => match of_agents {
                true => for_each(
                    gone,
                    "look why the node that is gone ended, and whether the others have started and reach this server",
                    "look why the nodes that are gone ended, and whether the others have started and reach this server",
                ),
                false => for_each(
                    gone,
                    "look why the process that is gone ended, and whether those of the other ranks have started and reach this \
                     server",
                    "look why the processes that are gone ended, and whether those of the other ranks have started and reach \
                     this server",
                ),
            },
            Self::WaitingForProcesses { passed, .. } if !passed.is_empty() => for_each(
                passed,
                "look at the log of the process that ended: a failed import, too little memory, a wrong interface? Where that was \
                 another, look whether the missing ones have started and reach this server",
                "look at the logs of the processes that ended: a failed import, too little memory, a wrong interface? Where \
                 those were others, look whether the missing ones have started and reach this server",
            ),
            Self::WaitingForProcesses { missing, of_agents: true, .. } if !missing.is_empty() => MISSING_NODE,
            Self::WaitingForProcesses { missing, .. } if !missing.is_empty() => {
                Presence::NeverSeen.look_at(Place::Rank)
            }
            Self::WaitingForProcesses { .. } => {
                "look for the nodes or ranks of the job that have not connected: have they started, do they reach this server, \
                 and have all the same --nnodes or WORLD_SIZE?"
            }
            Self::LinkAway { .. } => AWAY,
            Self::WorldSizesDiffer { have_met: true, .. } => {
                "stop what came last, or give it its own store (--listen twice, or POST /api/v1/stores): those who have met do \
                 not wait for it. If it is to take part, restart all processes of the job together with the same WORLD_SIZE \
                 (--nnodes, --nproc-per-node)"
            }
            Self::WorldSizesDiffer { .. } => SAME_WORLD_SIZE,
            Self::WaitingForKey { similar: None, absence: Absence::Deleted, .. } => {
                "look which part of the program deletes that key before all have read it; nothing is wrong with a queue that is empty"
            }
            Self::WaitingForKey { similar: None, absence: Absence::Reset { .. }, .. } => {
                "if it was there before the reset, restart all processes of the job together; else look what the processes do that are \
                 not there"
            }
            Self::WaitingForKey { absence: Absence::WriterGone { .. }, .. } => {
                "look at the log of the process that publishes it; a process publishes once, and again only when it is started anew"
            }
            Self::WaitingForKey { similar: Some(_), .. } | Self::GaveUp { similar: Some(_), .. } => {
                "one of the two names may be a slip: compare the parts of the program that write and read it"
            }
            Self::WaitingForKey { ended, others, .. }
            | Self::WaitingAtBarrier { ended, others, .. }
            | Self::WaitingForGroup { ended, others, .. }
                if !ended.is_empty() && !others.is_empty() =>
            {
                for_each(
                    ended,
                    "look why that process ended, if it was to write that, and what the others do that are not there",
                    "look why those processes ended, if one of them was to write that, and what the others do that are \
                     not there",
                )
            }
            Self::WaitingForKey { ended, .. }
            | Self::WaitingAtBarrier { ended, .. }
            | Self::WaitingForGroup { ended, .. }
                if !ended.is_empty() =>
            {
                for_each(
                    ended,
                    "look why that process ended: if it was to write that, nobody does any more",
                    "look why those processes ended: if one of them was to write that, nobody does any more",
                )
            }
            Self::WaitingAtBarrier { too_large: true, .. } => {
                "does the barrier count on more processes than the job has, or have some gone before they came to it?"
            }
            Self::WaitingAtBarrier { .. } => {
                "look at the processes that have not arrived: are they busy, or have they gone another way?"
            }
            Self::WaitingForKey { others, .. } if !others.is_empty() => {
                "look which part of the program writes that key, whether its name is the same there, and what the processes \
                 do that are not there"
            }
            Self::WaitingForKey { .. } => {
                "look which part of the program writes that key, and whether its name is the same there"
            }
            Self::WaitingForGroup { disagree: true, .. } => {
                "let all ranks make the same groups in the same order (new_group, also those that are no members)"
            }
            Self::WaitingForGroup { .. } => "look for ranks that have not reached this call, or have left",
            Self::Lost { gave_up: true, .. } => {
                "look at what they gave up on, and why that was not there; their own logs say no more than that. The others need \
                 them all the same, or they have to be restarted"
            }
            Self::Lost { cut_off: true, .. } => {
                "look at each of them and at the network: is it gone, or only cut off from this server? Its processes end, as \
                 their sessions are over"
            }
            Self::Lost { moment: Some(Moment::Waiting), .. } => {
                "look at the log and events of each pod; torch takes it for one that waits until its heartbeats expire, 15 s by \
                 default, and may stop the workers of all nodes for it, more than once"
            }
            Self::Lost { moment: Some(Moment::Counted), .. } => COUNTED,
            Self::RoundComplete { dead, .. } if !dead.is_empty() => COUNTED,
            Self::Lost { moment: Some(Moment::Joining), left, expected: Some(expected), .. }
                if left >= expected =>
            {
                "look at the log and events of each pod; there are as many nodes as the round needs without it"
            }
            Self::Lost { moment: Some(Moment::Joining), backend: RunKind::Static, .. } => {
                "look at the log and events of each pod; the others wait until it comes again with the same --node-rank"
            }
            Self::Lost { moment: Some(Moment::Joining), expected: None, .. } => {
                "look at the log and events of each pod; nobody has said whether the round needs it or a replacement (rallypoint \
                 ctl expect RUN N, or serve --nodes)"
            }
            Self::Lost { moment: Some(Moment::Joining), .. } => {
                "look at the log and events of each pod; the round needs it or a replacement"
            }
            Self::Lost { backend: RunKind::Static, .. } => {
                "look at the log and events of each pod; agents of the static rendezvous do not watch each other: restart all \
                 nodes if the job hangs"
            }
            Self::Lost { .. } => {
                "look at the log and events of each pod; torchrun takes it out of the round when its heartbeats expire, 15 s by \
                 default"
            }
            Self::LinkLost { links, .. } => for_each(
                links,
                "look at that node: is it gone, or its network? A longer --link-grace rides out longer breaks",
                "look at those nodes: are they gone, or their network? A longer --link-grace rides out longer breaks",
            ),
            Self::RelayRefused { .. } => {
                "stop the pod that should not be there, or give each relay a name of its own: --name (rallypoint relay), else \
                 POD_NAME and POD_UID, as with rallypoint run, else the host's name and address. It tries again, and its \
                 command waits meanwhile"
            }
            Self::NoHeartbeat { nodes, standing: Standing::TakenOut { joining: true }, .. } => for_each(
                nodes,
                "look at that node: is it frozen, overloaded, or cut off from this server? The round needs it or a replacement",
                "look at those nodes: are they frozen, overloaded, or cut off from this server? The round needs them or \
                 replacements",
            ),
            Self::NoHeartbeat {
                nodes, standing: Standing::TakenOut { .. } | Standing::SilentAgain, ..
            } => for_each(
                nodes,
                "look at that node: is it frozen, overloaded, or cut off from this server? What waits for its ranks hangs until \
                 their time-out",
                "look at those nodes: are they frozen, overloaded, or cut off from this server? What waits for their ranks hangs \
                 until its time-out",
            ),
            Self::NoHeartbeat { nodes, standing: Standing::InRound { others: Others::Wait }, .. } => {
                for_each(
                    nodes,
                    "look at that node: is it frozen, overloaded, or cut off from this server? What waits for it does so until its \
                 time-out",
                    "look at those nodes: are they frozen, overloaded, or cut off from this server? What waits for them does so until \
                 its time-out",
                )
            }
            Self::NoHeartbeat { standing: Standing::InRound { others: Others::Silent }, .. } => {
                "look at the nodes and at the network between them and this server: are they frozen, or is it cut off from them?"
            }
            Self::NoHeartbeat { nodes, .. } => for_each(
                nodes,
                "look at that node: is it frozen, overloaded, or cut off from this server? The others take it out of the round \
                 when more heartbeats are missing",
                "look at those nodes: are they frozen, overloaded, or cut off from this server? The others take them out of the \
                 round when more heartbeats are missing",
            ),
            Self::NodeRemoved { nodes, why: Silence::LinkAway { .. }, .. } => for_each(
                nodes,
                "look at the network between that node and this server, and at the log of its relay; when the link is back, the \
                 node has to join again, and what waits for its ranks hangs until its time-out",
                "look at the network between those nodes and this server, and at the logs of their relays; when the links are \
                 back, the nodes have to join again, and what waits for their ranks hangs until its time-out",
            ),
            Self::NodeRemoved { nodes, why: Silence::Waits, .. } => for_each(
                nodes,
                "look at what that node waits for: it goes on when that comes, and ends after its time-out, unless it is frozen \
                 or cut off as well",
                "look at what those nodes wait for: they go on when that comes, and end after their time-outs, unless they are \
                 frozen or cut off as well",
            ),
            Self::NodeRemoved { nodes, why: Silence::NotBack, .. } => for_each(
                nodes,
                "look at the log of that node: an agent that is connected without a relay fails when the server is restarted; what \
                 waits for its ranks hangs until its time-out",
                "look at the logs of those nodes: agents that are connected without a relay fail when the server is restarted; \
                 what waits for their ranks hangs until its time-out",
            ),
            Self::NodeRemoved { nodes, joining: true, .. } => for_each(
                nodes,
                "look at that node: is it frozen, overloaded, or cut off from this server? The round needs it or a \
                 replacement; when it comes back, it joins again",
                "look at those nodes: are they frozen, overloaded, or cut off from this server? The round needs them or \
                 replacements; when they come back, they join again",
            ),
            Self::NodeRemoved { nodes, .. } => for_each(
                nodes,
                "look at that node: is it frozen, overloaded, or cut off from this server? What waits for its ranks hangs \
                 until their time-out; when it comes back, it has to join again",
                "look at those nodes: are they frozen, overloaded, or cut off from this server? What waits for their ranks \
                 hangs until its time-out; when they come back, they have to join again",
            ),
            Self::RankLost { gave_up: true, .. } => {
                "look at what they gave up on, and why that was not there; their own logs say no more than that"
            }
            Self::RankLost { go_on: true, .. } => {
                "those who had met do not wait for what comes in another's place, and cannot meet it: restart all processes of the \
                 job together. Look at the log of what ended, too"
            }
            Self::RankLost { unseen, .. } if !unseen.is_empty() => {
                "look which of the node's ranks failed, perhaps one that had not come (a failed import?): torchrun ends the others \
                 of its node then; the ranks of other nodes wait for them until their time-out"
            }
            Self::RankLost { then, .. } if !then.is_empty() => {
                "look at the log of what ended first: torchrun ends the other ranks of its node then; those of other nodes wait for \
                 them until their time-out"
            }
            Self::RankLost { ranks, .. } => for_each(
                ranks,
                "look at the log of what ended; the others wait for it until their time-out",
                "look at the logs of what ended; the others wait for them until their time-out",
            ),
            Self::WorkersRestarted { first_ended: Some(_), .. } => {
                "look at the log of the rank that ended first: those that failed with it ended because of it. torchrun starts \
                 them again up to --max-restarts times"
            }
            Self::WorkersRestarted { nodes, .. } => for_each(
                nodes,
                "look at the logs of its workers: one of them failed. torchrun starts them again up to --max-restarts times",
                "look at the logs of their workers: one of them failed on each. torchrun starts them again up to \
                 --max-restarts times",
            ),
            Self::AddressesDropped { ranks } => for_each(
                ranks,
                "it does not publish it again by itself: restart all processes of the job together",
                "they do not publish them again by themselves: restart all processes of the job together",
            ),
            Self::EndedUnpublished { .. } => {
                "if they were to be ranks, look at their logs: a failed import, too little memory, a wrong interface \
                 (GLOO_SOCKET_IFNAME)?"
            }
            Self::RanksEnded { ranks, soon: Some(_), .. } if ranks.count() == 1 => {
                "look at its log: did it fail, was it killed, or could it not connect to the others at the addresses that \
                 they published? GLOO_SOCKET_IFNAME chooses the network interface; a host of the others may be cut off"
            }
            Self::RanksEnded { soon: Some(_), .. } => {
                "look at their logs, that of the first before all: did it fail, was it killed, or could they not connect to \
                 each other at the addresses that they published? GLOO_SOCKET_IFNAME chooses the network interface; a host of \
                 those that are connected may be cut off"
            }
            Self::RanksEnded { .. } => {
                "if they were not meant to end before the others, look at their logs; the store cannot tell success from \
                 a crash"
            }
            Self::AddressUnreachable { .. } => {
                "give the interface that the hosts share: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; a host's name that leads to 127.0.1.1 \
                 has that from /etc/hosts"
            }
            Self::RanksMissing { .. } => {
                "look at the processes of the missing ranks: are they still importing or loading, have they ended, or gone another \
                 way than the others? Those wait for them inside NCCL, which tells the store nothing"
            }
            Self::AllLeft { first: Some(_), .. } => {
                "if the job was not stopped on purpose, look at the log of what ended first, and at the pods' events"
            }
            Self::AllLeft { .. } => {
                "if the job was not stopped on purpose, look at the pods' logs and events"
            }
            Self::NotBack { may_go_on: true, .. } => {
                "without a relay (rallypoint run) no process connects again: they had met, and may go on until they need the store"
            }
            Self::NotBack { .. } => {
                "without a relay (rallypoint run) no process connects again, and each fails at its next request: if the job was not \
                 stopped on purpose, start all of its processes again"
            }
            Self::DuplicateRank { what, .. } if !what.starts_with("node") => {
                "give each process its own RANK, stop the process that should not be there; a second job needs its own store \
                 (--listen twice, or POST /api/v1/stores)"
            }
            Self::DuplicateRank { .. } => {
                "give each node its own rank (--node-rank, from 0 on), stop the process that should not be there; a second job \
                 needs its own store (--listen twice, or POST /api/v1/stores)"
            }
            Self::TwoJobs { .. } => {
                "give each job its own store (--listen twice, or POST /api/v1/stores), and start again what has not met or fails; \
                 what are parts of one job need the same --rdzv-id, or MASTER_PORT and WORLD_SIZE"
            }
            Self::TwoBackends { .. } => {
                "start every node with the same --rdzv-backend; a second job needs another --rdzv-id"
            }
            Self::LeftOver { left_over, dead, redundant: true, .. }
                if !dead.is_empty() && left_over.count() > dead.count() =>
            {
                "nothing: of them as many are taken in as there are places, when torch has noticed, 15 s after the last heartbeat by \
                 default; a second job needs another --rdzv-id"
            }
            Self::LeftOver { left_over, dead, .. } if !dead.is_empty() => for_each(
                left_over,
                "nothing: it is taken in when torch has noticed, 15 s after the last heartbeat by default",
                "nothing: they are taken in when torch has noticed, 15 s after the last heartbeat by default",
            ),
            Self::LeftOver { staying, .. } if !staying.is_empty() => for_each(
                staying,
                "look at that node: do its workers take long to end, or is its agent frozen?",
                "look at those nodes: do their workers take long to end, or are their agents frozen?",
            ),
            Self::RoundNotComplete { is_gone: true, .. }
            | Self::RoundNotComplete { asks_for_more: None, asks_for_other: None, .. } => {
                "stop all agents of the job, and start them with the same --nnodes: torch counts the nodes only when one joins; a \
                 second job needs another --rdzv-id"
            }
            Self::RoundNotComplete { from: ExpectedFrom::Api | ExpectedFrom::Flag, .. } => {
                "start every node with the same --nnodes, and expect that number (rallypoint ctl expect RUN N, or serve --nodes); \
                 a second job needs another --rdzv-id"
            }
            Self::RoundNotComplete { .. }
            | Self::FewerThanExpected { .. }
            | Self::LeftOver { fewer: true, .. } => {
                "start every node with the same --nnodes; a second job needs another --rdzv-id"
            }
            Self::LeftOver { redundant: false, .. } => {
                "torch stops the workers of that round to begin one with all, which may take half a minute; look at the agents \
                 in it if that does not come about; a second job needs another --rdzv-id"
            }
            Self::NnodesDiffer { .. } => {
                "stop what came last, or start every node again with the same --nnodes: torch restarts all nodes to take it in; a second job needs another --rdzv-id"
            }
            Self::LeftOver { left_over, .. } => for_each(
                left_over,
                "nothing, if it is a spare: it gets the place of a node that leaves; else raise the maximum in --nnodes on every \
                 node; a second job needs another --rdzv-id",
                "nothing, if they are spares: they get the places of nodes that leave; else raise the maximum in --nnodes on every \
                 node; a second job needs another --rdzv-id",
            ),
            Self::NodeRankBeyond { .. } => {
                "start every node with the same --nnodes and a --node-rank below it: they begin at 0"
            }
            Self::AnnouncementsDiffer { .. } => "give every pod the same number of nodes",
            Self::RunIsClosed { finished: true, .. } => {
                "nothing, if the job is done; else start it with another --rdzv-id, or 10 s after its last connection"
            }
            Self::RunIsClosed { .. } => {
                "start all nodes again when the old ones have left and the run is forgotten (10 s later), or with another \
                 --rdzv-id"
            }
            Self::ClosedIncomplete { .. } => {
                "the first node that is stopped or gives up closes the run for all; give them more time with --rdzv-conf \
                 join_timeout=1800 and look for the nodes that did not come"
            }
            Self::ClosedUnfinished { running, .. } if running.is_empty() => {
                "look at that node's log for the first error"
            }
            Self::ClosedUnfinished { running, .. } => for_each(
                running,
                "look at that node's log for the first error; if the other node is not stopped as well, its workers wait for \
                 the ranks of that one until their own time-outs",
                "look at that node's log for the first error; if the other nodes are not stopped as well, their workers wait \
                 for the ranks of that one until their own time-outs",
            ),
            Self::RunRestarted {} => {
                "a late node would train alone over the checkpoints: stop it if this is not a new run"
            }
            Self::ElasticDeadlock { .. } => {
                "a known fault of torch 2.15: restart all agents, and set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every \
                 node before nodes join a running job"
            }
            Self::WaitCycle { .. } => "none of them can go on: restart them together",
            Self::GaveUp { again: true, .. } => {
                "nothing, if the program means to poll; else look at the process that should write the key"
            }
            Self::GaveUp { reset: Some(_), .. } => {
                "what was written before the reset is gone, and is not written again by itself: restart all processes of the \
                 job together"
            }
            Self::GaveUp { others, ended, .. } if !others.is_empty() || !ended.is_empty() => {
                "most programs end after that; look at the processes that were not there: which of them was to write that key, and \
                 why did it not? For longer waits set init_process_group's timeout"
            }
            Self::GaveUp { .. } => {
                "most programs end after that; look at the process that should have written the key. For longer waits set \
                 --rdzv-conf read_timeout (agents) or init_process_group's timeout (workers)"
            }
            Self::ForeignClient { .. } => {
                "point it at the admin port if it is a health check, a scraper, or torchrun with --rdzv-backend=rallypoint (HTTP), and \
                 at another server if it is TLS"
            }
            Self::StoreClientAtAdmin { .. } => {
                "give the job the port of a store: --rdzv-endpoint, --master-port, MASTER_PORT; only --rdzv-backend=rallypoint uses the \
                 admin port"
            }
            Self::WorkersElsewhere { .. } => {
                "to see their ranks, and to be free of rank 0's host, let the workers meet here: docs/launch-modes.md"
            }
            Self::ExitBarrier { running, taken_out, dead, silent, .. }
                if running.is_empty() && silent.is_empty() && taken_out.is_empty() && !dead.is_empty() =>
            {
                for_each(
                    dead,
                    "look at the log of what died; the others wait for it up to 300 s and end then",
                    "look at the logs of what died; the others wait for them up to 300 s and end then",
                )
            }
            Self::ExitBarrier { taken_out, .. } if !taken_out.is_empty() => for_each(
                taken_out,
                "look at the node that was taken out: is it frozen, overloaded, or cut off from this server? Agents wait for it \
                 up to 300 s",
                "look at the nodes that were taken out: are they frozen, overloaded, or cut off from this server? Agents wait \
                 for them up to 300 s",
            ),
            Self::ExitBarrier { silent, .. } if !silent.is_empty() => for_each(
                silent,
                "look at the node that is not heard from: has it died, is it stopped, or cut off from this server? Agents wait for \
                 it up to 300 s",
                "look at the nodes that are not heard from: have they died, are they stopped, or cut off from this server? Agents \
                 wait for them up to 300 s",
            ),
            Self::ExitBarrier { running, not_back, .. } if running.is_empty() && !not_back.is_empty() => {
                for_each(
                    not_back,
                    "look at the log of the node that is not back: an agent that is connected without a relay fails when the server \
                 is restarted; the others wait for it up to 300 s and end then",
                    "look at the logs of the nodes that are not back: agents that are connected without a relay fail when the server \
                 is restarted; the others wait for them up to 300 s and end then",
                )
            }
            Self::ExitBarrier { running, .. } if running.count() == 1 => {
                "look at the node that has not finished; agents wait for it up to 300 s"
            }
            Self::ExitBarrier { .. } => {
                "look at the nodes that have not finished; agents wait for them up to 300 s"
            }
            Self::StoreClosed { met: Some(false), .. } => {
                "start all agents of the job again, together: the next round has a store of its own"
            }
            Self::StoreClosed { met: Some(true), .. } => {
                "nothing, if they need no store any more; agents fail at the end where they meet in it once more, and so does what \
                 makes new groups"
            }
            Self::StoreClosed { met: None, .. } => {
                "look whether the ranks train; if they do not, start all agents of the job again, together: the next round has a \
                 store of its own"
            }
            Self::StateDropped { .. } => {
                "a node that joins writes it again, and the others join it; if none is to come, restart all agents of the job \
                 together"
            }
            Self::WatchdogFired { .. } => "look at that rank's log for the collective that timed out",
            Self::UnreadableState { .. } => {
                "the job is not harmed; who has joined cannot be shown. Does another program use this key?"
            }
            Self::WaitsForRank { .. } => {
                "if it replaces that node, it gets the rank when that one leaves or its keep-alive runs out; else give each node \
                 its own rank (PET_NODE_RANK, node_rank, the pod's index)"
            }
            Self::BarrierWaits { .. } => {
                "look for participants that have not reached this barrier, or have ended; those that wait give up when their own \
                 time is over"
            }
            Self::Rendezvous(said) => said.remedy,
            Self::RunEnded { processes: 0 | 1, .. } => {
                "whether it succeeded cannot be seen here: its exit code and log tell"
            }
            Self::RunEnded { first: Some(_), .. } => {
                "whether they succeeded cannot be seen here: their exit codes and logs tell, those of the first one before all"
            }
            Self::RunEnded { ran, .. } if (AT_LEAST..=SHORT).contains(&ran.0) => {
                "whether they succeeded cannot be seen here: their exit codes and logs tell; where they could not connect to \
                 each other, GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME chooses the network interface"
            }
            Self::RunEnded { .. } => "whether they succeeded cannot be seen here",
            Self::StandsBy { spares, given_up: Some(_), .. } => for_each(
                spares,
                "nothing: it gets the place by itself; the log and events of the process of before say why that ended",
                "nothing: they get the places by themselves; the logs and events of the processes of before say why those \
                 ended",
            ),
            Self::StandsBy { spares, unreported: 0, .. } => for_each(
                spares,
                "nothing, if it is a spare; a second job needs another --rdzv-id",
                "nothing, if they are spares; a second job needs another --rdzv-id",
            ),
            Self::StandsBy { .. }
            | Self::RunStarted { .. }
            | Self::RoundComplete { .. }
            | Self::RanksComplete { .. }
            | Self::RunFinished { .. }
            | Self::NodeCameLate { arrival: Arrival::First | Arrival::Again, .. } => "",
            Self::NodeCameLate { .. } => {
                "nothing, if its ranks go on; a node that was taken out joins again with the next round"
            }
        }
    }
}
