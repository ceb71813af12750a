use super::*;

fn read_script(script: &str, variables: &[(&str, Text)]) -> Reading {
    let variables =
        variables.iter().map(|(name, text)| ((*name).to_owned(), Variable::One(text.clone()))).collect();
    let file = |path: &str| (path == "/s/run.sh").then(|| "export A=from-file; torchrun $1".to_owned());
    read(script, &[], Surroundings { variables, open: false, file: &file })
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
        ("eval \"x $N\"", "x|4"),
        ("B=1 x $B", "x|$B"),
        ("export B=1 && x $B", "x|1"),
        ("P=${P:=9}; x $P", "x|9"),
        ("X=a.b; x ${X%%.*}", "x|a"),
        ("A='x 1'; if y; then A=\"$A 2\"; fi; $A 3", "x|1|$A|3"),
        ("A=x; for i in $M; do A=\"$A $i\"; done; $A 3", "x|$A|3"),
    ] {
        assert_eq!(last(script), words, "{script}");
    }
}

#[test]
fn what_may_not_happen_is_not_believed() {
    assert_eq!(last("A=1; if [ $N = 3 ]; then A=2; fi; x $A"), "x|$A");
    assert_eq!(last("if [ $N = 3 ]; then A=2; else A=2; fi; x $A"), "x|2");
    assert_eq!(last("A=1; [ $N = 3 ] && A=2; x $A"), "x|$A");
    assert_eq!(last("A=1; for i in a b; do A=$i; done; x $A"), "x|$A");
    assert_eq!(last("case $N in 1) A=1;; *) A=2;; esac; x $A"), "x|$A");
    assert_eq!(last("(A=1); x $A"), "x|$A");
    assert_eq!(last("source /etc/x; x $A"), "x|$A");
    let reading = read_script("if true; then x; else y; fi; z", &[]);
    let conditional: Vec<bool> = reading.commands.iter().map(|command| command.conditional).collect();
    assert_eq!(conditional, [false, true, true, false]);
    let sourced = read_script("source /etc/x; x $A", &[]);
    assert_eq!(sourced.commands[0].words[1].unset().count(), 0, "a sourced file may set it");
    assert_eq!(read_script("x $A", &[]).commands[0].words[1].unset().next(), Some("A"));
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
