//! Native runs: the rendezvous and insight together, beside the traffic of a store.

use std::time::Duration;

use super::lab::{Lab, PORT};
use super::stories::{Checked, Stage, number, stage_all};
use crate::StoreOwner;
use rallypoint_api::RunState;
use rallypoint_protocol::ids::{Label, RunId};
use rallypoint_rendezvous::{
    Action, Decision, Join, JoinStanding, KeptChange, LeaveRequest, NodeInfo, Outcome, RankInRound,
    Rendezvous, Report, RoundState, RunRefusal, RunSnapshot, Terms, Wanted,
};
use rallypoint_store::{DropCause, Observed};

/// A native run beside a laboratory.
pub(super) struct Native {
    pub(super) lab: Lab,
    core: Rendezvous,
    run: RunId,
    nodes: (u32, u32),
    /// What its nodes ask for, if not for the default.
    keep_alive: Option<Duration>,
    /// The store of a complete round.
    store: Option<u16>,
}

pub(super) fn address(rank: u32) -> String {
    format!("10.0.0.{rank}")
}

fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

impl Native {
    pub(super) fn soon(nodes: (u32, u32)) -> Self {
        Self::of(Lab::soon(), nodes)
    }

    fn of(lab: Lab, nodes: (u32, u32)) -> Self {
        let core = Rendezvous::new(Terms::default(), 10);
        Self { lab, core, run: RunId::new(b"job"), nodes, keep_alive: None, store: None }
    }

    /// Insight hears what has happened.
    fn tell(&mut self) {
        for decision in self.core.take_decisions() {
            if let Decision::Tell(run, fact) = decision {
                if let Some(snapshot) = self.core.snapshot_of(&run, self.lab.now) {
                    self.observe(&snapshot);
                }
                self.lab.insight.tell_native(&run, &fact, self.lab.now);
            }
        }
        for run in self.core.take_changed() {
            if let Some(snapshot) = self.core.snapshot_of(&run, self.lab.now) {
                self.observe(&snapshot);
            }
        }
    }

    fn observe(&mut self, snapshot: &RunSnapshot) {
        let store = self.store.filter(|_| snapshot.state == RoundState::Complete);
        self.lab.insight.observe_native(snapshot, store);
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            min_nodes: self.nodes.0,
            max_nodes: self.nodes.1,
            keep_alive: self.keep_alive,
            ..Wanted::default()
        }
    }

    fn info(name: &str, address: &str) -> NodeInfo {
        let (name, address) = (label(name), label(address));
        NodeInfo { name, address, role: None, local_world_size: None, torch_version: None }
    }

    /// A node of that name and address joins, and waits for the answer.
    pub(super) fn join_as(
        &mut self,
        node: &str,
        name: &str,
        address: &str,
        join_id: &str,
        previous: Option<RankInRound>,
    ) -> Result<(), RunRefusal> {
        let join = Join { previous, ..self.asks(node, name, address, join_id) };
        let joined = self.core.join(&self.run, join, self.lab.now);
        self.ask_again(node);
        joined
    }

    fn asks(&self, node: &str, name: &str, address: &str, join_id: &str) -> Join {
        let (info, wanted) = (Self::info(name, address), self.wanted());
        let (node, join_id) = (label(node), join_id.into());
        Join { node, join_id, info, rank: None, payload: None, watched: true, previous: None, wanted }
    }

    /// Its join is asked for again, and waits.
    pub(super) fn ask_again(&mut self, node: &str) {
        self.core.park(&self.run, &label(node));
        self.tell();
    }

    /// How its join stands.
    pub(super) fn standing(&self, node: &str) -> Result<JoinStanding, RunRefusal> {
        self.core.standing(&self.run, &label(node))
    }

    /// A heartbeat, which waits for something to do.
    pub(super) fn beat_as(
        &mut self,
        node: &str,
        name: &str,
        address: &str,
        join_id: &str,
        place: RankInRound,
        world_size: u32,
    ) -> Result<Action, RunRefusal> {
        let report = Report {
            node: label(node),
            join_id: join_id.into(),
            info: Self::info(name, address),
            place,
            world_size,
            wanted: self.wanted(),
        };
        let view = self.core.heartbeat(&self.run, report, self.lab.now)?;
        self.core.park_in_round(&self.run, &label(node), place.round);
        self.tell();
        Ok(view.action)
    }

    /// The server is restarted, with its journal: it knows of the complete round, and not who waited.
    pub(super) fn restart_server(&mut self) {
        let kept = self.core.kept(&self.run);
        self.core = Rendezvous::new(Terms::default(), 10);
        if let Some(KeptChange::Run(run, record, members)) = kept {
            let members = members.into_iter().map(|(_, member)| member).collect();
            self.core.restore(&run, *record, members, self.lab.now);
        }
        self.tell();
    }

    /// The connection of its request breaks.
    pub(super) fn cut(&mut self, node: &str) {
        self.core.cut(&self.run, &label(node), self.lab.now);
        self.tell();
    }

    /// Its request has been answered, and no other has come.
    pub(super) fn unpark(&mut self, node: &str) {
        self.core.unpark(&self.run, &label(node), self.lab.now);
        self.tell();
    }

    pub(super) fn leave(&mut self, node: &str, said: LeaveRequest) {
        self.core.leave(&self.run, &label(node), said, self.lab.now);
        self.tell();
    }

    pub(super) fn close(&mut self, by: &str) {
        // It may be closed already.
        let _ = self.core.close(&self.run, by, self.lab.now);
        self.tell();
    }

    pub(super) fn extend(&mut self, seconds: u64) {
        // Only a round that forms has a deadline.
        let _ = self.core.extend(&self.run, Duration::from_secs(seconds), self.lab.now);
        self.tell();
    }

    /// The rendezvous looks at its deadlines.
    pub(super) fn tick(&mut self) {
        self.core.tick(self.lab.now);
        self.tell();
    }

    fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.lab.pass(1.0);
            self.tick();
        }
        self.lab.pass(0.5);
    }

    /// The store of the complete round is there.
    fn open_store(&mut self) {
        self.store = Some(PORT);
        self.lab.insight.own_store(PORT, StoreOwner::Round(self.run.clone()));
        let snapshot = self.core.snapshot_of(&self.run, self.lab.now).expect("a run");
        self.observe(&snapshot);
    }

    /// An operator resets the store of the complete round, which closes it.
    fn reset_store(&mut self) {
        let reset = Observed::StoreReset { cause: DropCause::Operator };
        self.lab.insight.observe(PORT, self.lab.now, reset);
        self.lab.insight.forget_store(PORT);
    }

    /// The agents of these ranks come to the store, and tell their roles.
    fn tell_role(&mut self, rank: u32) {
        self.lab.come(rank, &address(rank), 100 + rank);
        self.lab.set(rank, &format!("/torch.rendezvous.job.1/torchelastic/role_info/{rank}"), b"{}");
    }
}

/// Besides the steps of all stories, which begin with `lab` where the verb has another meaning here: nodes
/// `a` have their name as their id; nodes `a:0` of a first round are `id0` at an address of their own.
impl Stage for Native {
    fn lab(&mut self) -> &mut Lab {
        &mut self.lab
    }

    fn step(&mut self, step: &str) -> Checked {
        const EXIT: &str = "/torch.rendezvous.job.1/torchelastic/agent/terminal_state";
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        let (first, words) = rest.split_once(' ').unwrap_or((rest, ""));
        let (name, rank) =
            first.split_once(':').map_or((first, 0), |(name, rank)| (name, rank.parse().unwrap_or(0)));
        let (id, place) = (format!("id{rank}"), RankInRound { round: 1, rank });
        match verb {
            "nodes" => {
                let (min, max) = first.split_once("..").expect("two numbers");
                self.nodes = (number(min), number(max));
            }
            "keep" => self.keep_alive = Some(Duration::from_secs(number(first).into())),
            "grace" => {
                let grace = Some(Duration::from_secs(number(first).into()));
                self.core = Rendezvous::new(Terms { grace, ..Terms::default() }, 10);
            }
            "named" => self.run = RunId::new(first.as_bytes()),
            // Whether it is taken is what insight is asked for.
            "join" => drop(self.join_as(first, first, "10.0.0.1", "1", None)),
            "again" if !first.contains(':') => drop(self.join_as(name, name, "10.0.0.1", "2", None)),
            "twin" => drop(self.join_as(name, name, &address(rank), &rank.to_string(), None)),
            "again" => drop(self.join_as(name, name, "10.0.0.1", "2", Some(place))),
            "beat" => drop(self.beat_as(name, name, "10.0.0.1", "1", place, 2)),
            "enter" => {
                let (name, rank) = words.split_once(':').expect("a name and its address");
                drop(self.join_as(first, name, &address(number(rank)), "1", None));
            }
            "back" => drop(self.join_as(&id, name, &address(rank), "2", Some(place))),
            "beats" => drop(self.beat_as(&id, name, &address(rank), "1", place, number(words))),
            // As `rallypoint join` does: it sends no heartbeats later.
            "once" => {
                let rank = first.contains(':').then_some(rank);
                let join = Join { rank, watched: false, ..self.asks(name, name, "10.0.0.1", "1") };
                self.core.join(&self.run, join, self.lab.now).expect("it joins");
                self.ask_again(name);
            }
            // A round of two at one address, in which both are alive.
            "two" => {
                self.play("join a; join b; pass 40; beat a:0; beat b:1; pass 5; silent");
            }
            "come" | "all" => {
                let names: Vec<&str> = rest.split(' ').collect();
                for (rank, name) in (0..).zip(&names) {
                    drop(self.join_as(&format!("id{rank}"), name, &address(rank), "1", None));
                }
                if verb == "all" {
                    let all = (0..).zip(&names);
                    all.for_each(|(n, name)| self.play(&format!("beats {name}:{n} {}", names.len())));
                    self.open_store();
                }
            }
            "roles" => rest.split(',').for_each(|rank| self.tell_role(number(rank))),
            "open" => self.open_store(),
            "restart" => self.restart_server(),
            "reborn" => {
                self.lab.restart(1.0, &[]);
                self.restart_server();
            }
            "dropstore" => self.lab.insight.forget_store(PORT),
            "reset" => self.reset_store(),
            "cut" => self.cut(first),
            "unpark" => self.unpark(first),
            "ask" => self.ask_again(first),
            "left" => {
                let (why, outcome) = match words {
                    "" => (None, None),
                    "done" => (None, Some(Outcome::Succeeded)),
                    "failed" => (Some(label("ChildFailedError")), Some(Outcome::Failed)),
                    why => (Some(label(why)), None),
                };
                self.leave(first, LeaveRequest { why, outcome });
            }
            "close" => self.close(rest),
            "extend" => self.extend(number(first).into()),
            "pass" => self.pass(number(first)),
            "meet" => (0..2).for_each(|n| self.lab.rank(n, &address(n), n, number(first) as usize)),
            "exit" => {
                self.lab.add(number(first), &format!("{EXIT}/num_members"), 1);
                self.lab.wait(number(first), &[&format!("{EXIT}/last_member")]);
            }
            "lab" => return self.lab.step(rest),
            _ => return self.lab.step(step),
        }
        Ok(())
    }
}

fn native(table: &str) {
    stage_all("native", "", table, |lab| Native::of(lab, (2, 2)));
}

#[test]
fn nodes_of_a_round_that_goes_on() {
    native(
        "
= a newcomer is the cause of a new round and no node of the old one
nodes 2..3; two; join c; pass 1; see nodes.missing=0 missing.name=; again a:0; pass 1; again b:1; pass 5
silent
see nodes.joined=3
= a silent node is blamed and not the one that joins again for it
two; cut b; pass 4; again a:0; pass 2; said round_over=1; see missing.name=b; pass 30
= nodes that are gone are missing by name with the remedy for them
two; left b its agent was told to stop
8x beat a:0; pass 5
says not yet joined again: a
again a:0; pass 40; see missing.name=b missing.presence=left participants.after_seconds=null,44.0
holds nodes_missing
= a pod that announced itself and has not joined is missing by name
gate a:0/2 b:1/2; join a; pass 40; see missing.name=b missing.presence=announced; holds nodes_missing
= a failed worker and a refused node are told with the run
two; close node a; left a failed; pass 3
3x join late; pass 1
said join_refused=1; pass 5; left b; pass 12; join a; join b; pass 5; see explanation=null
= two backends under one id are two runs and a finding
join a; pass 2; silent; lab join 1; pass 3; holds two_backends=2; pass 40; said nodes_missing=0
cut a; pass 6; holds two_backends=0
= a native run is told once that it has finished
two; open; lab come 0 0 at 10.0.0.0; lab come 1 1 at 10.0.0.1; exit 0; exit 1
lab set 1 round1/torchelastic/agent/terminal_state/last_member x; pass 1; left a done; left b done; pass 5
said run_finished=1; see state=finished
= a node that is stopped is named before it is given up
two; unpark b; pass 8; said node_silent
= a rank of a native round that ends alone is told
two; own; meet 2; pass 12; lab leave 1; pass 35; said ranks_ended=1
= a rank of a native round that ends alone is told (2)
two; own; meet 2; pass 12; lab leave 0,1; pass 35; said ranks_ended=0
= a rank of a native round that ends alone is told (3)
two; own; meet 2; pass 12; lab leave 1; again a:0; pass 35; said ranks_ended=0
= the ranks of a native node that is not heard from are not told besides [soon]
join a; beat a:0; join b; beat b:1; own; meet 2; pass 5; lab leave 1; cut b; pass 12
said node_silent=1 ranks_ended=0
= a native round that lacks more than what is silent says so [soon]
nodes 3..3; join a; join b; pass 2; cut b; pass 8; holds nodes_missing
= ranks go with the store of their round
two; own; meet 3; pass 2; see ranks.joined=2; dropstore; pass 2; see ranks=null
= ranks of a round that is over end while the next one forms
two; open; meet 3; pass 2; see ranks.joined=2; again a:0; lab leave 0,1; pass 2; see ranks.joined=0
said lost=0
= native runs that would be complete together are told of each other
nodes 3..3; join a; join b; named jbo; join c; lab pass 31; said nodes_missing=4
= who is silent in a round that forms is not said to be there
nodes 3..3; join a; join b; pass 25; cut b; pass 8; holds nodes_missing
= nobody is told to join again where no node is left
two; cut a; cut b; pass 20; said lost; errors 1
= two complete jobs may have one id
two; lab static 1,0 of 2; lab assign 0 2x1; pass 10; said two_backends=0
= that a later round has finished is said of that round
two; again a:0; again b:1; pass 3; left a done; left b done; pass 3
= how the last round ended is over when one of as many nodes is complete
two; left b failed; pass 4; again a:0; pass 40; again b:1; pass 5; see explanation=null
= the next round runs since it is complete however fast that was
two; again a:0; again b:1; pass 1; see round=2 state=running; recent state_since
= who never came is not forgotten beside who is gone
nodes 3..3; join a; join b; pass 5; cut b; pass 45; holds nodes_missing; see missing.last_seen=5.5
join c; pass 2; holds nodes_missing
= when the last gives up it is told what was missing
nodes 3..3; join a; join b; pass 5; left a gave up waiting; left b gave up waiting; pass 3
said round_deadline=1
= that a round expires holds until it is given up or has more time
join a; pass 1503; holds round_deadline=1; extend 600; pass 2; holds round_deadline=0; pass 600
holds round_deadline=1; said round_deadline=3; pass 300; said round_deadline=4; holds round_deadline=0
= a round that gathered before a restart of the server has done so since then
nodes 3..3; join a; join b; pass 60; reborn; join a; pass 1; join b; pass 40; join c; pass 1
says complete: 3 nodes in 1 min
= who left is told with the time at which it left [soon]
two; left b its work failed; pass 4; see explanations.since=46.0,46.0,0.0,0.0
= what native nodes did is shown with when [free]
two; cut b; pass 20; see explanations.code=lost,node_silent,run_started,round_complete
see explanations.evidence.seen=closed,closed,joined,joined explanations.evidence.at=46.0,46.0,0.0,0.0
see explanations.evidence.who=b (10.0.0.1), rank 1,b (10.0.0.1), rank 1,a (10.0.0.1),b (10.0.0.1)
again a:0; pass 40
see explanations.code=nodes_missing,lost,node_silent,run_started,run_started,round_complete
see explanations.evidence.seen=joined,closed,closed,joined,joined,joined
see explanations.evidence.at=66.5,46.0,46.0,66.5,0.0,0.0
= what native nodes did is shown with when (2) [free]
two; unpark b; pass 8; see explanations.evidence.seen=heard,joined,joined
see explanations.evidence.at=46.0,0.0,0.0
= what native nodes did is shown with when (3) [free]
two; close node a; left a failed; pass 3; see explanations.evidence.seen=left,null,joined,joined
see explanations.code=run_closed,run_closed,run_started,round_complete
= in the last call a round closes when that is over
nodes 2..3; join a; pass 2; see state=joining; closes 1798; join b; pass 2; see state=last_call; closes 28
",
    );
}

#[test]
fn rounds_of_three_that_wait_lose_or_finish() {
    native(
        "
= the chain of waits leads to the native node that has told no role
nodes 3..3; all a b c; roles 0,2; lab wait 0 round1/torchelastic/role_info/0 round1/torchelastic/role_info/1
lab wait 2 round1/torchelastic/assigned_ranks/2; pass 33; holds waiting=1; lab leave 2; pass 2
holds waiting=1
= agents at the exit barrier of a native run are told with those they wait for
nodes 3..3; all a b c; roles 0,1,2; pass 2; exit 0; pass 33; holds exit_barrier=1
says connected: b (node rank 1) and c (node rank 2)
see state=exiting exit.arrived=1 nodes.joined=3; lab leave 0; unpark id0; ask id0; pass 1; close node c
left id2 failed; exit 1; pass 4; holds exit_barrier=1; see nodes.joined=2 nodes.gone=1
= an agent at the exit barrier of a round that is given up is told with the next one
nodes 3..3; all a b c; roles 0,1,2; exit 0; pass 2; cut id2; pass 16; back b:1; pass 33; holds nodes_missing=1
lab leave 0; pass 2
= ranks that wait in a closed run are told until they leave
all a b; roles 0,1; lab set 0 round1/torchelastic/assigned_ranks/0 [0,2,0,2]
lab set 0 round1/torchelastic/assigned_ranks/1 [1,2,1,2]; lab rank 10:0 of 2; lab await 10 1; pass 2
close node b; left id1 failed; pass 33; holds waiting=1; left id0 failed; pass 3; holds waiting=0
= nodes with one name are told with their addresses
nodes 3..3; all vm vm vm; cut id1; pass 2; back vm:2; back vm:0; pass 5
see missing.name=vm at 10.0.0.1 missing.rank=1 missing.presence=unknown nodes.missing=1; pass 10
see missing.name=vm at 10.0.0.1 missing.rank=1 missing.presence=closed; pass 20; enter id3 vm:3; pass 1
= a node that dies in a closed run is told and no more in the round
nodes 3..3; all a b c; roles 0,1,2; lab rank 10:0 of 3; lab await 10 2; pass 1; close node c; left id2 failed
pass 5; cut id1; pass 4; pass 13; see nodes.joined=1 nodes.gone=2 waits.pid=2010; left id0 failed; pass 20
said lost=1
= what has finished is not missing and its round needs what has died
all a b; roles 0,1; exit 0; pass 4; cut id1; pass 16; pass 33; see nodes.joined=0 nodes.missing=1 nodes.gone=1
see nodes.finished=1 waits.who=a missing.name=b; holds nodes_missing
= what has finished is not missing and its round needs what has died (2)
nodes 3..3; all a b c; roles 0,1,2; exit 0; pass 4; cut id2; pass 16; back b:1; pass 33
see nodes.joined=1 nodes.missing=1 nodes.gone=1 nodes.finished=1 waits.who=a missing.name=c
holds nodes_missing
= what has finished is not missing and its round needs what has died (3)
all a b; roles 0,1; exit 0; pass 4; cut id1; pass 16; pass 33; enter id9 b:1; pass 33
see nodes.joined=1 nodes.missing=0 nodes.gone=0 nodes.finished=1; holds nodes_missing
= a pod that is started again is told with its process of before [soon]
nodes 3..3; all a b c; cut id1; pass 1; enter id9 b:1; pass 4; holds stands_by=1
see nodes.waiting=1 nodes.redundant=0; back a:0; back c:2; pass 4; see nodes.missing=0 missing.name=
holds nodes_missing; pass 6; see state=running
= a spare whose connection closed does not stand by [free]
two; join c; pass 31; holds stands_by; cut c; pass 4; holds stands_by=0
= a silent node is told with the process that came in its place [soon]
nodes 3..3; all a b c; unpark id1; pass 1; enter id9 b:1; pass 8; said node_silent=1
= a round is not complete with a node that died while it waited [soon]
nodes 3..3; once a; enter b b:1; cut b; pass 1; once c; pass 5; said round_complete=0 nodes_missing
see state=joining; once d; pass 3; pass 9
= a round that nobody has joined is waited for since the last one was over [soon]
nodes 3..3; all a b c; left id1; pass 5; holds nodes_missing=1; cut id2; pass 3; lab pass 1; ask id2; back a:0
pass 3
= what is silent is the cause and not who was refused [soon]
nodes 3..3; enter id0 a:0; enter id1 b:1; nodes 2..2; enter other other:7; pass 5; said join_refused=1
cut id1
pass 7; ask id1; pass 2
= after a restart who does not come back is named and the restart is told [soon]
nodes 2..3; keep 5; come n0 n1 n2; beats n0:0 3; beats n1:1 3; beats n2:2 3; pass 3; restart; back n1:1
back n0:0; lab pass 0.5; pass 8; holds nodes_missing; pass 9; said lost=0
= after a restart who does not come back is named and the restart is told (2) [soon]
nodes 2..3; keep 2; come n0 n1 n2; beats n0:0 3; beats n1:1 3; beats n2:2 3; pass 3; restart; back n1:1
back n0:0; lab pass 0.5; pass 4; holds nodes_missing; pass 9; said lost=0
= a node that waited for its place came when it asked for it [soon]
all a b; cut id1; pass 1; back a:0; pass 5; enter id9 b:1; pass 12
= a round with enough nodes waits only until what is silent is given up [soon]
nodes 2..3; all a b c; pass 1; cut id2; pass 1; back a:0; back b:1; pass 4; holds nodes_missing
see nodes.missing=0; said lost=0; pass 12; said lost=1
= a round with enough nodes waits only until what is silent is given up (2) [soon]
nodes 2..3; all a b c; cut id1; pass 1; cut id2; pass 20; back a:0; pass 4; said lost=1
= a death is the cause and not who was refused [soon]
all a b; nodes 3..3; enter other other:7; nodes 2..2; cut id1; pass 17; back a:0; pass 5; holds nodes_missing
= of a group without heartbeats it is said what is not known [soon]
nodes 3..3; once a:0; once c; pass 2; cut a; pass 5; once d; pass 1; once a:0; pass 2
see participants.last_heartbeat=null,null,null; once b:0; pass 5; holds nodes_missing; see nodes.missing=2
left b
pass 2; see state=running nodes.joined=3
= nodes that die one after the other are all gone
nodes 3..3; all a b c; roles 0,1,2; cut id0; pass 2; cut id1; pass 2; cut id2; pass 2; pass 11
see nodes.joined=0 nodes.gone=2 nodes.missing=3; pass 5; see state=gone nodes.joined=0 nodes.gone=3
see nodes.missing=0 participants.name=a,b,c
= nodes with one id are told and not looked for elsewhere
nodes 3..3; twin worker:1; pass 1; twin worker:2; pass 1; twin worker:3; pass 1; pass 45
said join_refused=2; holds nodes_missing=1
= who waits in a round that was given up is told why it was
nodes 3..3; all a b c; roles 0,2; lab wait 0 round1/torchelastic/role_info/0 round1/torchelastic/role_info/1
lab wait 2 round1/torchelastic/assigned_ranks/2; unpark id1; pass 33; said lost=1; holds waiting
= a node that is not heard from is not said to run still [soon]
nodes 2..3; all a b c; roles 0,1,2; exit 0; cut id1; pass 6; holds exit_barrier=1
says connected: c (node rank 2) | nothing heard: b (node rank 1)
= survivors that meet again in the same processes are told so
nodes 2..3; grace 1; come a b c; beats a:0 3; beats b:1 3; beats c:2 3; cut id2
17x pass 1; beats a:0 3; beats b:1 3
back a:0; back b:1; pass 40; says nobody was started again
see explanation.code=round_complete explanation.severity=warning
= survivors that meet again in the same processes are told so (2)
nodes 2..3; come a b c; beats a:0 3; beats b:1 3; beats c:2 3; cut id2
17x pass 1; beats a:0 3; beats b:1 3
back a:0; back b:1; pass 40; see explanation=null
never nobody was started again
",
    );
}

#[test]
fn what_fails_after_an_operator_closed_the_store_of_a_round_is_told_with_that() {
    // Whether its ranks have met or not.
    for (met, dropped) in [("lab rank 10:0 of 2", 1), ("lab rank 10..12:0 of 2", 0)] {
        let round = format!("all a b; roles 0,1; {met}; pass 2; reset; pass 1; said store_reset={dropped}");
        for what_fails in [
            "pass 5; holds store_reset; left id1; pass 5; holds store_reset=0",
            "close node b; left id1 failed; pass 4; said run_closed",
            "left id1 its agent lost the round's store: DistNetworkError; pass 2; said lost",
            "back b:1; pass 1; said round_over; back a:0; pass 1; left id1; pass 3",
        ] {
            let mut native = Native::of(Lab::new(), (2, 2));
            native.play(&round);
            native.play(what_fails);
        }
    }
}

/// A state of a run of the nodes a, b and c, with ranks 0 to 2 in round 1, where there is one.
const STATES: [(&str, &str); 6] = [
    ("joining", "nodes 3..3; come a b; pass 2"),
    ("last call", "nodes 2..3; come a b; pass 2"),
    ("complete", "nodes 3..3; all a b c; roles 0,1,2; pass 2"),
    ("exit", "nodes 3..3; all a b c; roles 0,1,2; pass 2; exit 0"),
    ("closed", "nodes 3..3; all a b c; roles 0,1,2; pass 2; close node c; left id2 failed"),
    ("next round", "nodes 3..3; all a b c; roles 0,1,2; pass 2; back a:0"),
];

/// What happens to b in it. After a restart those of a complete round report; who only waited joins again, as
/// if for the first time.
const EVENTS: [(&str, &str); 7] = [
    ("is killed", "cut id1"),
    ("is frozen", "unpark id1"),
    ("leaves", "left id1"),
    ("finishes", "left id1 done"),
    ("comes anew", "cut id1; pass 1; enter id9 b:1"),
    ("comes under another name", "cut id1; pass 1; enter id9 d:9"),
    ("does not come back after a restart", "restart"),
];

#[test]
fn in_each_state_each_event_is_told_as_what_it_is() {
    for ((state, play), (event, happens)) in
        STATES.iter().flat_map(|state| EVENTS.map(|event| (*state, event)))
    {
        let mut native = Native::of(Lab::soon(), (3, 3));
        native.play(play);
        native.play("pass 1");
        native.play(happens);
        if event.ends_with("restart") && native.store.is_some() {
            for (rank, name) in [(0, "a"), (2, "c")] {
                let (id, place) = (format!("id{rank}"), RankInRound { round: 1, rank });
                let told = native.beat_as(&id, name, &address(rank), "1", place, 3);
                if name == "a" && told == Ok(Action::Rejoin) {
                    native.play("back a:0");
                }
            }
        }
        let case = format!("{state}: b {event}");
        for _ in 0..12 {
            // What holds is looked at again.
            native.play("pass 1; lab pass 0.5");
            let run = native.lab.run("job");
            let nodes = &run.summary.nodes;
            let (missing, min) = (nodes.missing.unwrap_or(0), nodes.expected.as_ref().map_or(0, |of| of.min));
            if matches!(run.summary.state, RunState::Joining | RunState::LastCall) {
                assert!(missing == 0 || nodes.joined + nodes.finished + missing <= min, "{case}: {nodes:?}");
            }
            assert!(run.missing.len() <= missing as usize, "{case}: {missing}, {:?}", run.missing);
        }
        let is_told = |code: &str| native.lab.texts(code).iter().any(|text| text.contains("b (10.0.0.1)"));
        // The yardstick has who is told.
        let untold = |code: &str| assert!(!is_told(code), "{case}: {code}: {:?}", native.lab.said);
        let summary = native.lab.run("job").summary;
        match (event, state) {
            ("finishes", "next round") => assert_eq!(summary.nodes.finished, 1),
            ("finishes", _) | ("leaves" | "does not come back after a restart", "closed") => untold("lost"),
            ("comes anew" | "comes under another name", "closed") => {
                assert!(!native.lab.texts("join_refused").is_empty(), "{case}: {:?}", native.lab.said);
            }
            ("does not come back after a restart", "joining" | "last call") => {
                assert_eq!(summary.state, RunState::Gone);
            }
            _ => {}
        }
    }
}

#[test]
fn a_run_that_is_started_again_is_counted_if_it_had_finished() {
    for (outcome, restarts) in [("done", 1), ("failed", 0)] {
        let mut native = Native::of(Lab::new(), (2, 2));
        native.play(&format!("two; close node a; left a {outcome}; left b {outcome}; pass 11"));
        native.play("again a; pass 1; said run_started=3");
        assert_eq!(native.lab.insight.totals().restarted, restarts, "{outcome}");
    }
}

#[test]
fn nodes_that_have_not_reported_after_a_restart_are_missing_by_their_ranks() {
    let mut native = Native::of(Lab::new(), (2, 3));
    let place = RankInRound { round: 4, rank: 1 };
    native.beat_as("b", "b", &address(1), "1", place, 3).expect("a view");
    // Two at least, and up to three.
    native.play("pass 10; see missing.rank=0,2 nodes.missing=1; said node_silent=1");
}
