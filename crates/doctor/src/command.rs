//! Mistakes in torchrun's command line, for a command that is about to run and for a command in a manifest.

use super::Check;
use rallypoint_node::launch::{
    Backend, Environment, NEW_STORE_EACH_ROUND, Torchrun, basename, restarts_workers,
};
use rallypoint_protocol::ids::Nodes;

/// Every check of a torchrun command. `env` has the variables of the command, as far as they are known.
pub fn check_command(torchrun: &Torchrun, env: &Environment) -> Vec<Check> {
    let named = torchrun.flag("rdzv-backend").or_else(|| env.get("PET_RDZV_BACKEND"));
    let backend = named.map_or(Backend::Static, Backend::parse);
    let found = [
        ("rdzv-conf-keys", conf_keys(torchrun, env, &backend)),
        ("flags-of-other-backend", Some(ignored_flags(torchrun, &backend))),
        ("command-endpoint", endpoint(torchrun, env)),
        ("run-id", run_id(torchrun, env, &backend)),
        ("c10d-restarts", restarts(torchrun, env, &backend)),
    ];
    found.into_iter().filter_map(|(id, check)| Some(check?.called(id))).collect()
}

fn conf_keys(torchrun: &Torchrun, env: &Environment, backend: &Backend) -> Option<Check> {
    if torchrun.is_ft_launcher() {
        return None;
    }
    let conf =
        torchrun.conf().or_else(|| env.get("PET_RDZV_CONF").map(rallypoint_node::launch::RdzvConf::parse))?;
    // A key that contains a variable may be any key.
    let ignored: Vec<&str> = conf.ignored_by(backend).into_iter().filter(|key| !key.contains('$')).collect();
    if ignored.is_empty() {
        return Some(Check::pass(format!("the backend reads every key of rdzv_conf ({conf})")));
    }
    let name = if *backend == Backend::C10d { "c10d" } else { "static" };
    let evidence = format!("the {name} backend ignores {} in rdzv_conf, without a word", ignored.join(", "));
    let remedy = match (backend, conf.get("timeout")) {
        (Backend::C10d, Some(timeout)) => {
            format!(
                "join_timeout={timeout} is what timeout={timeout} looks like; without it a node waits 600 s"
            )
        }
        _ => "take them out, or choose the backend that reads them \
              (https://docs.pytorch.org/docs/stable/elastic/rendezvous.html)"
            .into(),
    };
    Some(Check::warn(evidence, remedy))
}

fn ignored_flags(torchrun: &Torchrun, backend: &Backend) -> Check {
    if *backend == Backend::Static {
        return Check::pass("the static backend reads --node-rank and --master-addr");
    }
    let ignored: Vec<&str> =
        ["node-rank", "master-addr", "master-port"].into_iter().filter(|flag| torchrun.has(flag)).collect();
    if ignored.is_empty() {
        return Check::pass("no flag that only the static backend reads");
    }
    Check::warn(
        format!(
            "--{} count for the static backend only; here the order of the nodes is not their index",
            ignored.join(", --")
        ),
        "take them out, or take --rdzv-backend out to use the static backend",
    )
}

fn endpoint(torchrun: &Torchrun, env: &Environment) -> Option<Check> {
    let nnodes = torchrun.flag("nnodes").or_else(|| env.get("PET_NNODES"))?;
    let several = Nodes::parse(nnodes).is_none_or(|nodes| nodes.max > 1);
    let flags = ["rdzv-endpoint", "master-addr"];
    let named = flags.iter().find(|flag| torchrun.has(flag));
    let filled = named.is_none_or(|flag| {
        torchrun.flag(flag).is_some_and(|value| !value.trim_start_matches(':').is_empty())
    });
    let by_env = env.has_any(&["PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"]);
    let value = named.and_then(|flag| torchrun.flag(flag)).unwrap_or_default();
    if several && value.contains('$') {
        let (evidence, remedy) = (format!("the endpoint `{value}` is not filled in"), "set its variables");
        // What a command prints is not known before it runs.
        let is_certain = !value.contains("$(");
        return Some(if is_certain { Check::fail(evidence, remedy) } else { Check::warn(evidence, remedy) });
    }
    let is_loopback = ["localhost", "127."].iter().any(|own| value.starts_with(own));
    if several && is_loopback {
        let evidence = format!("the endpoint `{value}` is each node itself: every one waits there alone");
        let remedy = "the first node's name; a loopback address is right only if a relay listens there";
        return Some(Check::warn(evidence, remedy));
    }
    if !several || (filled && (named.is_some() || by_env)) {
        return Some(Check::pass("torchrun is told where to meet"));
    }
    Some(Check::fail(
        format!("torchrun has --nnodes={nnodes} and no endpoint: each node waits alone on 127.0.0.1"),
        "add --rdzv-endpoint=HOST:29500, or start it with `rallypoint run`, which sets it",
    ))
}

fn run_id(torchrun: &Torchrun, env: &Environment, backend: &Backend) -> Option<Check> {
    match torchrun.flag("rdzv-id").or_else(|| env.get("PET_RDZV_ID")) {
        Some("") => Some(Check::fail(
            "--rdzv-id is empty; the variable in it is not set",
            "give the Job's UID: metadata.labels['batch.kubernetes.io/controller-uid']",
        )),
        Some(id) => Some(Check::pass(format!("the run is called `{id}`"))),
        None if *backend == Backend::Static => None,
        None => Some(Check::warn(
            if env.has_any(&["RDZV_ID"]) {
                "RDZV_ID is set, but torchrun reads PET_RDZV_ID; the run is called `none`"
            } else {
                "torchrun calls the run `none`; two jobs on one store would meet"
            },
            "set PET_RDZV_ID, or --rdzv-id, to the Job's UID",
        )),
    }
}

/// Since torch 2.5, restarted ranks find the stale addresses of their predecessors in the store of node 0's
/// agent.
fn restarts(torchrun: &Torchrun, env: &Environment, backend: &Backend) -> Option<Check> {
    let (name, value) = NEW_STORE_EACH_ROUND;
    let is_set = || match env.get(name) {
        Some(said) => said == value || said.contains('$'),
        None => torchrun.caller().iter().any(|word| basename(word) == "rallypoint"),
    };
    if *backend != Backend::C10d || !restarts_workers(Some(torchrun), env, None) {
        return None;
    }
    if is_set() {
        return Some(Check::pass("ranks that are started again get a store of their own"));
    }
    Some(Check::warn(
        "the c10d backend may start ranks again (--max-restarts, --nnodes MIN:MAX), and since torch 2.5 they \
         then wait for ever: they meet the addresses of the ranks before in the store of node 0's agent",
        format!("set {name}={value} on every node; `rallypoint run` sets it"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Verdict, assert_found};

    type Vars<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn each_mistake_in_a_command_is_found_and_its_cure_passes() {
        #[rustfmt::skip]
        let rows: [(&str, &str, Vars, Verdict, &str); 24] = [
            ("rdzv-conf-keys", "--rdzv-backend=c10d --rdzv_conf=timeout=1800,read_timeout=120",
                &[], Verdict::Warn, "join_timeout=1800"),
            ("rdzv-conf-keys", "--rdzv-backend=c10d", &[("PET_RDZV_CONF", "timeot=3")], Verdict::Warn,
                "timeot"),
            ("rdzv-conf-keys", "--rdzv-conf=join_timeout=3",
                &[], Verdict::Warn, "static backend ignores join_timeout"),
            ("rdzv-conf-keys", "--rdzv-backend=c10d --rdzv_conf=join_timeout=1800,is_host=0",
                &[], Verdict::Pass, ""),
            ("rdzv-conf-keys", "--rdzv-conf=timeout=1800", &[], Verdict::Pass, ""),
            ("flags-of-other-backend", "--rdzv-backend=c10d --node_rank=1 --master_addr=a",
                &[], Verdict::Warn, "--node-rank, --master-addr"),
            ("flags-of-other-backend", "--node_rank=1", &[("PET_RDZV_BACKEND", "c10d")], Verdict::Warn,
                "--node-rank"),
            ("flags-of-other-backend", "--node_rank=1 --master_addr=a", &[], Verdict::Pass, ""),
            ("command-endpoint", "--nnodes=4", &[], Verdict::Fail, "127.0.0.1"),
            ("command-endpoint", "--nnodes=4 --rdzv-endpoint=", &[], Verdict::Fail, "127.0.0.1"),
            ("command-endpoint", "--nnodes=4 --rdzv-endpoint=a:1", &[], Verdict::Pass, ""),
            ("command-endpoint", "--nnodes=4", &[("PET_MASTER_ADDR", "a")], Verdict::Pass, ""),
            ("command-endpoint", "--nnodes=1", &[], Verdict::Pass, ""),
            ("command-endpoint", "--nnodes=4 --rdzv-endpoint='$HEAD:1'", &[], Verdict::Fail, "`$HEAD:1`"),
            ("command-endpoint", "--nnodes=4 --rdzv-endpoint='$(head):1'", &[], Verdict::Warn, "not \
              filled in"),
            ("command-endpoint", "--nnodes=4 --rdzv-endpoint=localhost:1", &[], Verdict::Warn, "relay"),
            ("run-id", "--rdzv-id=", &[], Verdict::Fail, "empty"),
            ("run-id", "--rdzv-backend=c10d", &[("RDZV_ID", "x")], Verdict::Warn, "PET_RDZV_ID"),
            ("run-id", "--rdzv-backend=c10d", &[], Verdict::Warn, "`none`"),
            ("run-id", "--rdzv-backend=c10d --rdzv-id=u1", &[], Verdict::Pass, "u1"),
            ("c10d-restarts", "--rdzv-backend=c10d --max-restarts=3",
                &[], Verdict::Warn, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
            ("c10d-restarts", "--rdzv-backend=c10d --nnodes=1:4",
                &[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0")], Verdict::Warn, "for ever"),
            ("c10d-restarts", "", &[("PET_RDZV_BACKEND", "c10d"),
                ("PET_MAX_RESTARTS", "$N")], Verdict::Warn, "for ever"),
            ("c10d-restarts", "--rdzv-backend=c10d --max-restarts=3",
                &[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")], Verdict::Pass, ""),
        ];
        for (id, flags, env, verdict, word) in rows {
            let words = shlex::split(&format!("torchrun {flags} train.py")).expect("words");
            let env: Environment = env.iter().copied().collect();
            let torchrun = Torchrun::parse(&words).expect("torchrun");
            assert_found(&check_command(&torchrun, &env), id, verdict, word);
        }
    }

    #[test]
    fn who_never_restarts_or_is_started_by_run_is_not_warned_of_restarts() {
        let verdict = |command: &str| {
            let torchrun = Torchrun::parse(&shlex::split(command).expect("words")).expect("torchrun");
            let checks = check_command(&torchrun, &Environment::default());
            checks.iter().find(|check| check.id == "c10d-restarts").map(|check| check.verdict)
        };
        assert_eq!(verdict("torchrun --rdzv-backend=c10d --nnodes=2 t.py"), None);
        assert_eq!(verdict("torchrun --rdzv-backend=c10d --max-restarts=0 t.py"), None);
        assert_eq!(verdict("torchrun --max-restarts=3 t.py"), None, "the static backend meets anew");
        assert_eq!(verdict("torchrun --rdzv-backend=rallypoint --max-restarts=3 t.py"), None);
        let by_run = "rallypoint run -- torchrun --rdzv-backend=c10d --max-restarts=3 t.py";
        assert_eq!(verdict(by_run), Some(Verdict::Pass));
    }
}
