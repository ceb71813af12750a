use super::*;

fn read_script(script: &str, variables: &[(&str, Text)]) -> Reading {
    let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), vec![text.clone()])).collect();
    let file = |path: &str| (path == "/s/run.sh").then(|| "export A=from-file; torchrun $1".to_owned());
    read(script, &[], Surroundings { variables, open: false, file: &file, here: &[], choice: 0 })
}

/// The words of the last command.
fn last(script: &str) -> String {
    let host = Text::of(Part::Of(Source::HostName));
    let pod = Text::of(Part::Of(Source::PodName));
    let reading = read_script(
        script,
        &[("HOSTNAME", host), ("POD_NAME", pod), ("N", Text::known("4")), ("E", Text::known(""))],
    );
    assert!(reading.unread.is_empty(), "{script}: {:?}", reading.unread);
    let command = reading.commands.last().unwrap_or_else(|| panic!("no command in {script}"));
    command.words.iter().map(ToString::to_string).collect::<Vec<_>>().join("|")
}

#[test]
fn words_become_what_a_shell_makes_of_them() {
    for (script, words) in [
        ("x a 'b c' \"d $N\"", "x|a|b c|d 4"),
        ("x ${N} ${M:-7} ${E:-8} ${N:+yes} ${M:+no}", "x|4|7|8|yes"),
        ("x $M", "x|$M"),
        ("A=(--n 1 --m); x \"${A[@]}\" ${A[1]}", "x|--n|1|--m|1"),
        ("L='torchrun --nnodes 2'; $L t.py", "torchrun|--nnodes|2|t.py"),
        ("x $((N * 2)) $((N*M))", "x|8|$M"),
        ("x ${HOSTNAME##*-}", "x|$<the end of the pod's host name>"),
        ("x ${POD_NAME##*-}", "x|$<the end of the pod's name>"),
        ("x $(hostname | awk -F- '{print $NF}')", "x|$<the end of the pod's host name>"),
        (
            "x $(($(echo $HOSTNAME | grep -o '[0-9]*$'))) $(($(echo 3) + N))",
            "x|$<the end of the pod's host name>|7",
        ),
        ("x $(echo $POD_NAME | rev | cut -d- -f1 | rev)", "x|$<the end of the pod's name>"),
        ("x $(hostname -i) `hostname`", "x|$<the pod's own address>|$<the pod's host name>"),
        ("x $(nvidia-smi -L | wc -l)", "x|$(nvidia-smi -L | wc -l)"),
        ("x $RANDOM $(date +%s)", "x|$<a random number or a time>|$<a random number or a time>"),
        ("x \\\n  -a", "x|-a"),
        ("x \\\n  -a \\\n", "x|-a"),
        ("f() { x $1; }; f 3", "x|3"),
        ("bash -c 'x 1'", "x|1"),
        ("bash -exo pipefail -c -- 'x 2'", "x|2"),
        ("cat > /t/r.sh <<'EOF'\nx $N\nEOF\nbash /t/r.sh", "x|4"),
        ("bash /s/run.sh 5", "torchrun|5"),
        ("singularity run --nv /i.sif /s/run.sh 5", "torchrun|5"),
        ("eval \"x $N\"", "x|4"),
        ("B=1 x $B", "x|$B"),
        ("export B=1 && x $B", "x|1"),
        ("P=${P:=9}; x $P", "x|9"),
        ("X=a.b; x ${X%%.*}", "x|a"),
        ("A='x 1'; if y; then A=\"$A 2\"; fi; $A 3", "x|1|$A|3"),
        ("A=x; for i in $(seq 2 3); do A=\"$A $i\"; done; $A", "x|2|3"),
        ("for ((i = 1; i < N; i++)); do x $i; done", "x|3"),
        ("for i in {0..2}; do x $i; done", "x|2"),
        ("r=0; for i in a b; do x $i $((r++)); done", "x|b|1"),
        ("r=0; for i in a b; do x $r; : $((r++)); done", "x|1"),
        ("r=0; for i in a b; do x $r $((++r)); done", "x|1|2"),
        ("A=x; for i in $M; do A=\"$A $i\"; done; $A 3", "x|$A|3"),
    ] {
        assert_eq!(last(script), words, "{script}");
    }
}

#[test]
fn what_may_not_happen_is_not_believed() {
    assert_eq!(last("A=1; if [ $HOSTNAME = a ]; then A=2; fi; x $A"), "x|$A");
    assert_eq!(last("if y; then A=2; else A=2; fi; x $A"), "x|2");
    assert_eq!(last("A=1; [ $HOSTNAME = a ] && A=2; x $A"), "x|$A");
    assert_eq!(last("A=1; for i in $M; do A=$i; done; x $A"), "x|$A");
    assert_eq!(last("case $HOSTNAME in 1) A=1;; *) A=2;; esac; x $A"), "x|$A");
    assert_eq!(last("(A=1); x $A"), "x|$A");
    assert_eq!(last("source /etc/x; x $A"), "x|$A");
    let reading = read_script("if up; then x; else y; fi; z", &[]);
    let conditional: Vec<bool> = reading.commands.iter().map(|command| command.conditional).collect();
    assert_eq!(conditional, [false, true, true, false]);
    let sourced = read_script("source /etc/x; x $A", &[]);
    assert_eq!(sourced.commands[0].words[1].unset().count(), 0, "a sourced file may set it");
    assert_eq!(read_script("x $A", &[]).commands[0].words[1].unset().next(), Some("A"));
}

/// A loop that may be left early runs its first turn up to there. `wait` ends what runs in the background.
#[test]
fn it_is_known_which_commands_of_a_loop_run_and_which_side_by_side() {
    let reading = read_script("for i in 1 2; do a $i || break; b; done; c", &[]);
    let conditional: Vec<bool> = reading.commands.iter().map(|command| command.conditional).collect();
    assert_eq!(conditional, [false, true, true, true, false]);
    let reading = read_script("while a; do if b; then break; fi; done; c", &[]);
    assert!(!reading.commands.last().expect("c").conditional);
    let reading = read_script("a; for i in 1 2; do b & done; c; wait; d; e", &[]);
    let moments: Vec<usize> = reading.commands.iter().map(|command| command.moment).collect();
    assert_eq!(moments, [0, 1, 1, 1, 2, 3]);
}

#[test]
fn a_condition_is_decided_where_its_values_are_known() {
    for (condition, holds) in [
        ("[ $N = 4 ]", true),
        ("[ $N -gt 4 ]", false),
        ("[ -z \"$E\" -a ! $N -lt 4 ]", true),
        ("[ -n \"$M\" ] || test $N != 3", true),
        ("[[ $N == [45] || -n $N ]]", true),
        ("[[ ! ( $N == ?5 || $N -ge 5 ) ]]", true),
        ("[ $N = 5 -o $N = 6 ]", false),
        ("((N > 3))", true),
        ("! false", true),
    ] {
        let words = last(&format!("if {condition}; then x yes; else x no; fi"));
        assert_eq!(words, if holds { "x|yes" } else { "x|no" }, "{condition}");
    }
    assert_eq!(last("case $N in 1|2) x 1 ;; 4*) x 2 ;; *) x 3 ;; esac"), "x|2");
    assert_eq!(last("[ $N = 5 ] && x 2; [ $N = 4 ] && x 1"), "x|1");
    assert_eq!(last("if [ $N = 4 ]; then x 1; exit; fi; x 2"), "x|1");
}

/// Both branches launch something, and nothing decides: there are two readings.
#[test]
fn what_nothing_decides_is_read_once_for_each_branch() {
    let read_choice = |script: &str, here: &[(Source, String)], choice: usize| {
        let pod = Text::of(Part::Of(Source::Index));
        let variables = BTreeMap::from([("I".to_owned(), vec![pod])]);
        let file = |_: &str| None;
        read(script, &[], Surroundings { variables, open: true, file: &file, here, choice })
    };
    let words = |reading: &Reading| {
        let last = reading.commands.last().expect("a command");
        last.words.iter().map(ToString::to_string).collect::<Vec<_>>().join("|")
    };
    let script = "if [ -n \"$FAST\" ]; then torchrun 1; else torchrun 2; fi";
    let (first, second) = (read_choice(script, &[], 0), read_choice(script, &[], 1));
    assert_eq!((words(&first), words(&second), first.ways), ("torchrun|1".into(), "torchrun|2".into(), 2));
    assert!(first.commands.iter().all(|command| !command.conditional));
    // One condition has one answer.
    let twice = format!("{script}; {script}");
    assert_eq!(read_choice(&twice, &[], 0).ways, 2);
    let script = "if [ $I = 0 ]; then torchrun --node-rank=$I; else torchrun 2; fi";
    let index = |index: &str| vec![(Source::Index, index.to_owned())];
    let (first, second) = (read_choice(script, &index("0"), 0), read_choice(script, &index("1"), 0));
    assert_eq!(words(&first), "torchrun|--node-rank=$<the pod's index>");
    assert_eq!((words(&second), second.is_by_pod, second.ways), ("torchrun|2".into(), true, 1));
    let undecided = read_choice(script, &[], 0).commands;
    assert!(
        undecided.iter().all(|command| command.conditional == (command.words[0] == Text::known("torchrun")))
    );
}

#[test]
fn a_command_gets_what_is_exported() {
    let gets = |script: &str| {
        let reading = read_script(script, &[("E", Text::known("1"))]);
        reading.commands.last().expect("a command").environment().into_keys().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(gets("A=1; E=2; x"), "E");
    assert_eq!(gets("A=1; export A; B=2 x"), "A B E");
    assert_eq!(gets("export A=1; declare -x B=2; declare C=3; x"), "A B E");
    assert_eq!(gets("set -a; A=1; set +a; B=2; x"), "A E");
    assert_eq!(gets("A=1; export B=2; bash -c 'x'"), "B E");
}

#[test]
fn what_cannot_be_read_is_said() {
    for (script, word) in [
        ("bash /opt/run.sh", "/opt/run.sh"),
        ("if then fi (", "no shell"),
        ("/opt/train.sh 1", "/opt/train.sh"),
    ] {
        let reading = read_script(script, &[]);
        assert!(reading.unread.iter().any(|unread| unread.contains(word)), "{script}: {:?}", reading.unread);
    }
}

#[test]
fn loops_in_loops_are_read_for_so_many_turns_and_no_more() {
    let nested = |depth: usize| {
        let (begin, end) = ("for i in {1..64}; do ".repeat(depth), "; done".repeat(depth));
        read_script(&format!("{begin}x{end}"), &[]).commands.len()
    };
    assert_eq!(nested(1), 64);
    assert!((1..5000).contains(&nested(6)), "{}", nested(6));
    let beside = "for i in {1..64}; do y=$(for j in {1..64}; do for k in {1..64}; do z; done; done); x; done";
    assert_eq!(read_script(beside, &[]).commands.len(), 64);
}
