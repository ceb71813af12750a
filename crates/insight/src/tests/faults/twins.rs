//! The healthy twins of the faults, of which nothing may be said above info.

use super::super::stories::stories_with;

#[test]
fn healthy_twins_are_silent() {
    stories_with(
        "twins",
        "soon",
        "
= env: all come, train and end one by one
rank 0..4 of 4; pass 60
for 0..4: leave %; pass 0.5
pass 60; silent
= env: one run after the other
for 0,10,20: rank %:0,%+1:1,%+2:2 of 3 at 10.0.0.1; pass 5; leave %,%+1,%+2; pass 0.4
pass 60; silent
= static: runs of one id follow each other
3x staticrun 2; workers 0..4 of 4; pass 20; leave 100..104; sexit 0; sexit 1 last; leave 0,1; pass 15
pass 60; silent
= c10d: a node leaves by itself before the round is complete
join 0..3; cas 2 leave; pass 0.5; cas 2 join complete; exchange 0 3 1; pass 60; silent
= c10d: an agent is started again with the process id that it had, before its end is seen
come 5 1000 at 10.78.0.10; first 5; cas 5 join; pass 0.5; join 0; pass 0.5; leave 5; pass 0.5; cas 0
joins 1 join complete; exchange 0 2 1
9x pass 5; cas 0,1
silent
= a client that is of no job waits for a key of its own
come 0 44 at 10.0.0.9; wait 0 mine; pass 60; silent
= a static job follows a c10d job with the same id
run 2; pass 10; exit 0; exit 1 last; leave 0,1; pass 3; staticrun 2; pass 20; see kind=static; sexit 0
sexit 1 last; leave 0,1; pass 60; silent
= env: ranks whose addresses do not say how many there are end one after the other
for 0,1,2: worker %; set % /default_pg/0//cpu//0/% lazy
pass 30; leave 0; pass 3; leave 1,2; pass 5; silent
= env: a program polls for a key of its own
rank 0,1 of 2
30x ask 1 /stop; wait 0 checkpoint/next; pass 1.5; cancel 0
pass 60; silent
",
    );
}
