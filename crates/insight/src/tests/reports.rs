//! What public bug reports show, each with its healthy twin: addresses that cannot work, groups on which
//! ranks disagree, many that are lost at one moment, jobs that were over at once.

use super::lab::Lab;
use super::stories::{Stage as _, stories_with};
use crate::Change;

#[test]
fn what_reports_show_is_said_and_not_of_their_twins() {
    stories_with(
        "reports",
        "soon free",
        "
= a rank publishes a loopback address
listens 0 n0 10.0.0.1 2 at 10.0.0.1; listens 1 n1 127.0.1.1 2 at 10.0.0.2; pass 6
says rank 1 on n1 published 127.0.1.1 (loopback): ranks on other hosts cannot reach it
says if the job hangs, give the interface that the hosts share: GLOO_SOCKET_IFNAME
quiet
nowhere rank 0 on n0 published
= ranks on two hosts publish loopback addresses, and all have published
listens 0 n0 127.0.1.1 2 at 10.0.0.1; listens 1 n1 127.0.1.1 2 at 10.0.0.2; pass 6; complains
says ranks on other hosts cannot reach them
= ranks publish loopback addresses, and end at once as they cannot meet
for 0..3: listens % n% 127.0.0.1 3 at 10.0.0.#
pass 0.1; leave 1,2; pass 6; complains
says rank 0 on n0 published 127.0.0.1 (loopback), rank 1 on n1 | cannot reach them there
= a rank that was there before is not said to have met others
rank 0,1 of 2 at 10.0.0.#; met 0,1 2; pass 2; leave 1; rank 5:1 of 2 at 10.0.0.5; await 5 0; pass 6
says rank 0 on host0 | it has written that for others before
= a rank publishes a link-local address
listens 0 n0 10.0.0.1 2 at 10.0.0.1; listens 1 n1 169.254.7.1 2 at 10.0.0.2; pass 6
says rank 1 on n1 published 169.254.7.1 (link-local)
= a rank publishes the address of Docker's bridge
listens 0 n0 10.0.0.1 2 at 10.0.0.1; listens 1 n1 172.17.0.1 2 at 10.0.0.2; pass 6
says rank 1 on n1 published 172.17.0.1 (Docker's bridge)
= one rank publishes an address of another network than all others
listens 0 n0 10.0.0.1 2 at 10.0.0.1; listens 1 n1 192.168.122.1 2 at 10.0.0.2; pass 6
says rank 1 on n1 published 192.168.122.1 (another network than it connects from) | may not reach it
nowhere cannot reach
= an address that cannot work is named before all ranks have come
listens 0 n0 127.0.1.1 4 at 10.0.0.1; listens 1 n1 10.0.0.2 4 at 10.0.0.2; pass 6
says rank 0 on n0 published 127.0.1.1
= the NCCL id has a loopback address
worker 0 at 10.0.0.1; worker 1 at 10.0.0.2; set 0 pg/cuda//0 nccl:127.0.0.1; get 1 pg/cuda//0; pass 6
says published 127.0.0.1 (loopback): ranks on other hosts cannot reach it | NCCL_SOCKET_IFNAME
= twin: the NCCL id has an address that works
worker 0 at 10.0.0.1; worker 1 at 10.0.0.2; set 0 pg/cuda//0 nccl:10.0.0.1; get 1 pg/cuda//0; pass 6
nowhere on other hosts
= twin: all ranks are on one host
listens 0 n0 127.0.1.1 2 at 10.0.0.1; listens 1 n0 127.0.1.1 2 at 10.0.0.1; pass 6
nowhere on other hosts
= twin: hosts that are emulated on one
listens 0 n0 127.0.0.1 2 at 127.0.0.2; listens 1 n1 127.0.0.1 2 at 127.0.0.3; pass 6
nowhere on other hosts
= twin: all ranks meet in a network of their own
listens 0 n0 192.168.1.1 2 at 10.0.0.1; listens 1 n1 192.168.1.2 2 at 10.0.0.2; pass 6
nowhere on other hosts
= twin: containers of one host
listens 0 c0 172.17.0.2 2 at 172.17.0.2; listens 1 c1 172.17.0.3 2 at 172.17.0.3; pass 6
nowhere on other hosts
= ranks wait below different groups
rank 0..4 of 4; pass 1; set 0,1 pg/1//cpu//0/# gloo; wait 0,1 pg/1//cpu//0/2; set 2,3 pg/2//cpu//0/# gloo
wait 2,3 pg/2//cpu//0/0; pass 6
says 4 processes have waited | different groups: rank 0 on host0 and rank 1 on host1 below the sub-group 1
says rank 2 on host2 and rank 3 on host3 below the sub-group 2 | in the same order
nowhere not reached this call
= twin: ranks make their groups one after the other
rank 0..4 of 4; pass 1; set 0..4 pg/1//cpu//0/# gloo; set 0..4 pg/2//cpu//0/# gloo; pass 6
nowhere each other
= many are lost at one moment
worker 0..8; publish 0..7 of 8; await 0..5 7; pass 6
for 0..8: leave %; pass 0.02
pass 6
says the connections of all 8 processes closed within 0.1 s, 5 of them while they waited
nowhere left without finishing | died
= twin: a few leave, and others much later
worker 0..4; publish 0..3 of 4
for 0..4: leave %; pass 2
pass 6
nowhere closed within
= a rank is killed, and takes the others with it within milliseconds
rank 0..4 of 4; pass 5
for 2,0,1,3: leave %; pass 0.002
pass 6
says the connections of all 4 processes closed after 5 s; first: rank 2 on host2, 6 ms before the last
= a job of one rank
listens 0 n0 10.0.0.1 1 at 10.0.0.1; pass 6
says rank 0 on n0 is its only rank
nowhere (+
= twin: a job that is done in less than a second
rank 0..4 of 4; pass 0.4; leave 0..4; pass 6
says the connections of all 4 processes closed | success cannot be seen here
nowhere SOCKET_IFNAME | look at | logs
= whether ranks have met is known only when a key shows it
rank 0..4 of 4; pass 40; see state=running ranks.have_met=false; silent; set 1 pg/1//cpu//0/1 gloo; pass 1
see state=running ranks.have_met=true
",
    );
}

/// A healthy run is told when it starts, when it is complete and when it is over; the rest is for the debug
/// log.
#[test]
fn a_healthy_run_has_three_lines() {
    let mut lab = Lab::soon();
    lab.scene.is_free();
    lab.play(
        "join 0; pass 1; joins 1 join complete; exchange 0 2 1; pass 1; rank 10..12:0 of 2 at 10.77.0.^",
    );
    lab.play("pass 2; leave 10,11; exit 0; exit 1 last; leave 0,1; pass 3");
    let lines = |is_detail: bool| {
        let line = move |news: &Change| match news {
            Change::Explanation { explanation, aloud: true, is_detail: its } if *its == is_detail => {
                Some(explanation.text.clone())
            }
            _ => None,
        };
        lab.news.iter().filter_map(line).collect::<Vec<_>>()
    };
    assert_eq!((lines(false).len(), lines(true).len()), (3, 1), "{:?}", lines(false));
    assert!(lines(true)[0].contains("have published their addresses"), "{:?}", lines(true));
    let advice = lab.said.iter().map(|(_, said)| &said.remedy).find(|remedy| !remedy.is_empty());
    assert_eq!(advice, None, "all left well");
}
