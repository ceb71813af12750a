use super::*;
use crate::launch::{Given, derive, find_torchrun};

struct Launched {
    mode: Mode,
    plan: Plan,
}

impl Launched {
    fn set(&self, name: &str) -> Option<&str> {
        self.plan.set.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn notes(&self) -> String {
        self.plan.notes.join("\n")
    }
}

const NODE: [(&str, &str); 4] =
    [("PET_NODE_RANK", "1"), ("PET_NNODES", "2"), ("MASTER_ADDR", "rally"), ("POD_IP", "10.0.0.7")];

fn launched(
    command: &str,
    asked: Option<Mode>,
    plugin: bool,
    more: &[(&str, &str)],
) -> Result<Launched, PlanError> {
    let env: Environment = NODE.iter().chain(more).copied().collect();
    let argv = shlex::split(command).expect("words");
    let torchrun = find_torchrun(&argv);
    let launch = derive(&env, &Given::default(), torchrun.as_ref()).expect("consistent");
    let mode = Mode::choose(asked, &argv, torchrun.as_ref(), &env, &launch, plugin)?;
    let server = Server {
        store: if mode.wants_own_store() { "10.0.0.1:29510" } else { "rally:29500" }
            .parse()
            .expect("an endpoint"),
        admin: "rally:29501".parse().expect("an endpoint"),
    };
    let job = Job {
        argv: &argv,
        torchrun: torchrun.as_ref(),
        env: &env,
        launch: &launch,
        server: &server,
        patience: Duration::from_mins(30),
    };
    Ok(Launched { mode, plan: job.plan(mode) })
}

#[test]
fn the_mode_is_what_was_asked_for_then_what_the_command_says_then_what_is_possible() {
    let mode =
        |command: &str, asked, plugin, more: &[_]| launched(command, asked, plugin, more).map(|it| it.mode);
    assert_eq!(mode("torchrun t.py", None, true, &[]), Ok(Mode::Plugin));
    assert_eq!(mode("torchrun t.py", None, false, &[]), Ok(Mode::Static));
    assert_eq!(mode("torchrun t.py", None, false, &[("PET_NNODES", "1:2")]), Ok(Mode::C10d));
    assert_eq!(mode("torchrun --rdzv-backend c10d t.py", None, true, &[]), Ok(Mode::C10d));
    assert_eq!(mode("torchrun t.py", None, true, &[("PET_RDZV_BACKEND", "c10d")]), Ok(Mode::C10d));
    assert_eq!(
        mode("torchrun t.py", Some(Mode::Static), true, &[("PET_RDZV_BACKEND", "c10d")]),
        Ok(Mode::Static)
    );
    assert_eq!(mode("python t.py", None, true, &[]), Ok(Mode::Env));
    assert_eq!(mode("sh -c 'torchrun --rdzv_backend=c10d t.py'", None, true, &[]), Ok(Mode::C10d));
    let refused = mode("torchrun --rdzv-backend=c10d t.py", Some(Mode::Static), false, &[]);
    assert_eq!(refused, Err(PlanError::FlagContradicts { asked: "static", flag: "c10d" }));
    assert_eq!(mode("torchrun t.py", Some(Mode::Plugin), false, &[]), Err(PlanError::NoPlugin));
    assert_eq!(
        mode("torchrun --rdzv-backend=etcd t.py", None, true, &[]),
        Err(PlanError::OtherBackend("etcd".into()))
    );
    assert_eq!(mode("torchrun --standalone t.py", None, true, &[]), Err(PlanError::Standalone));
    assert_eq!(mode("python t.py", Some(Mode::C10d), true, &[]), Err(PlanError::NotTorchrun("c10d")));
    let elastic = [("PET_NNODES", "1:2")];
    assert_eq!(mode("torchrun t.py", Some(Mode::Static), false, &elastic), Err(PlanError::NotStatic));
}

#[test]
fn c10d_gets_timers_and_says_what_it_changed() {
    let command = "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=rally:29500 --rdzv_id=x \
                   --rdzv_conf=timeout=1800,read_timeout=120 train.py";
    let it = launched(command, None, false, &[]).expect("planned");
    assert_eq!(
        shlex::try_join(it.plan.argv.iter().map(String::as_str)).expect("words"),
        "torchrun '--nnodes=2' '--rdzv_backend=c10d' '--rdzv_endpoint=rally:29500' '--rdzv_id=x' \
         '--rdzv-conf=read_timeout=120,join_timeout=1800,is_host=0' train.py"
    );
    assert!(
        it.notes().contains("ignores timeout=1800; join_timeout=1800 is what was meant"),
        "{}",
        it.notes()
    );
    assert_eq!(it.set("PET_LOCAL_ADDR"), Some("10.0.0.7"));
    assert_eq!(it.set("PET_NODE_RANK"), None, "which c10d would warn of");

    let bare = launched("torchrun --rdzv_backend=c10d train.py", None, false, &[]).expect("planned");
    assert_eq!(bare.set("PET_RDZV_CONF"), Some("join_timeout=1800,read_timeout=300,is_host=0"));
    assert_eq!(bare.set("PET_RDZV_ENDPOINT"), Some("rally:29500"));
    assert_eq!(bare.plan.argv.len(), 3, "the command itself is as it was");

    let host = launched(
        "torchrun --rdzv_backend=c10d --rdzv-conf=is_host=true,join_timeout=9 t.py",
        None,
        false,
        &[],
    )
    .expect("planned");
    assert!(
        host.plan.argv.contains(&"--rdzv-conf=is_host=0,join_timeout=9,read_timeout=300".into()),
        "{:?}",
        host.plan.argv
    );
    assert!(host.notes().contains("is_host=true is changed"), "{}", host.notes());
}

#[test]
fn exactly_one_node_leads_the_rendezvous_of_ft_launcher() {
    let conf = |rank| {
        let it = launched("ft_launcher --ft-cfg-path f.yaml t.py", None, true, &[("PET_NODE_RANK", rank)])?;
        assert_eq!((it.mode, it.set("PET_RDZV_BACKEND")), (Mode::C10d, Some("c10d")), "never the plugin");
        let leader = [it.set("TORCHELASTIC_USE_AGENT_STORE"), it.set("MASTER_PORT")];
        assert_eq!(leader, if rank == "0" { [Some("True"), Some("29500")] } else { [None; 2] });
        it.set("PET_RDZV_CONF").map_or(Err(PlanError::NoEndpoint), |conf| Ok(conf.to_owned()))
    };
    assert!(conf("0").expect("planned").ends_with("is_host=1"));
    assert!(conf("1").expect("planned").ends_with("is_host=0"));
    let said = "ft_launcher --rdzv-conf=is_host=1 t.py";
    let it = launched(said, None, false, &[]).expect("planned");
    assert!(
        it.set("PET_RDZV_CONF").is_some_and(|conf| conf.starts_with("is_host=0")),
        "rank 1 does not lead"
    );
    let refused = launched("ft_launcher t.py", Some(Mode::Static), false, &[]).map(|it| it.mode);
    assert_eq!(refused, Err(PlanError::FtLauncher("static")));
    let unknown = launched("ft_launcher t.py", None, false, &[("PET_NODE_RANK", "")]).map(|it| it.mode);
    assert_eq!(unknown, Err(PlanError::NoLeader));
}

#[test]
fn what_stands_in_a_script_is_not_changed_but_said() {
    let script = "sh -c 'torchrun --rdzv_backend=c10d --rdzv_conf=timeout=5 t.py'";
    let it = launched(script, None, false, &[]).expect("planned");
    assert_eq!(it.plan.argv, shlex::split(script).expect("words"));
    assert!(it.notes().contains("stands in a shell script"), "{}", it.notes());
}

#[test]
fn the_plugin_meets_on_the_admin_port() {
    let it = launched("torchrun --rdzv-endpoint=rally:29500 t.py", None, true, &[]).expect("planned");
    assert_eq!(it.set("PET_RDZV_BACKEND"), Some("rallypoint"));
    assert!(it.plan.argv.contains(&"--rdzv-endpoint=rally:29501".into()), "{:?}", it.plan.argv);
    assert_eq!((it.set("PET_NODE_RANK"), it.set("PET_RDZV_CONF")), (Some("1"), Some("join_timeout=1800")));
    let asked = launched("torchrun --rdzv-conf=timeout=60 t.py", None, true, &[]).expect("planned");
    assert!(
        asked.plan.argv.contains(&"--rdzv-conf=timeout=60".into()),
        "the plugin reads it as join_timeout"
    );
}

#[test]
fn static_and_env_make_every_process_a_client_of_the_runs_store() {
    let it = launched("torchrun t.py", None, false, &[]).expect("planned");
    for (name, value) in [
        ("PET_RDZV_BACKEND", "static"),
        ("PET_MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29510"),
        ("PET_RDZV_ENDPOINT", "10.0.0.1:29510"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("PET_NODE_RANK", "1"),
    ] {
        assert_eq!(it.set(name), Some(value), "{name}");
    }
    assert_eq!(it.set("RANK"), None, "torchrun sets it");
    assert_eq!(it.set("TORCHELASTIC_RESTART_COUNT"), None, "torchrun counts");
    let it = launched("python t.py", None, false, &[]).expect("planned");
    for (name, value) in [
        ("MASTER_ADDR", "10.0.0.1"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
    ] {
        assert_eq!(it.set(name), Some(value), "{name}");
    }
    assert_eq!(it.set("PET_RDZV_BACKEND"), None);
    let again =
        launched("python t.py", None, false, &[("TORCHELASTIC_RESTART_COUNT", "3")]).expect("planned");
    assert_eq!(again.set("TORCHELASTIC_RESTART_COUNT"), None, "the user's own count stays");
}

/// Two nodes of eight processes.
const EIGHT: [(&str, &str); 1] = [("PET_NPROC_PER_NODE", "8")];

#[test]
fn accelerate_is_told_who_its_node_is() {
    let it = launched("accelerate launch --multi_gpu train.py --x", None, false, &EIGHT).expect("planned");
    assert_eq!(it.mode, Mode::C10d);
    assert_eq!(
        it.plan.argv.join(" "),
        "accelerate launch --num_machines=2 --machine_rank=1 --num_processes=16 --main_process_ip=rally \
         --main_process_port=29500 --rdzv_backend=c10d \
         --rdzv_conf=join_timeout=1800,read_timeout=300,is_host=0 --multi_gpu train.py --x"
    );
    assert_eq!(it.set("RANK"), None);
    let deepspeed = "python -m accelerate.commands.launch --use_deepspeed --num-processes 4 train.py";
    let it = launched(deepspeed, None, false, &EIGHT).expect("planned").plan.argv.join(" ");
    assert!(it.contains(" --deepspeed_multinode_launcher=standard --use_deepspeed"), "{it}");
    assert!(!it.contains("--num_processes=") && it.contains("--num-processes 4"), "what it says stays: {it}");
    let told = "accelerate launch --multi_gpu --num_machines=2 --machine_rank=1 train.py";
    assert_eq!(launched(told, None, false, &EIGHT).expect("planned").plan.argv.join(" "), told);
    let alone =
        launched("accelerate launch train.py", None, false, &[("PET_NNODES", "1"), ("PET_NODE_RANK", "0")]);
    assert_eq!(alone.expect("one node").plan.argv.join(" "), "accelerate launch train.py");
}

#[test]
fn what_would_train_alone_on_each_node_is_refused() {
    let refused = |command: &str, more: &[_]| {
        let as_it_is = launched(command, Some(Mode::Env), false, more).expect("the way out");
        assert_eq!(as_it_is.plan.argv, shlex::split(command).expect("words"));
        launched(command, None, false, more).map(|it| it.mode).expect_err(command)
    };
    let accelerate = |command: &str, more: &[_]| match refused(command, more) {
        PlanError::Accelerate(needs) => needs,
        other => panic!("{command}: {other}"),
    };
    assert!(accelerate("accelerate launch t.py", &EIGHT).contains("--multi_gpu"));
    assert!(accelerate("accelerate launch --cpu t.py", &EIGHT).contains("torchrun"));
    assert!(accelerate("sh -c 'accelerate launch --multi_gpu t.py'", &EIGHT).contains("shell script"));
    let auto = [("PET_NPROC_PER_NODE", "auto")];
    assert!(accelerate("accelerate launch --multi_gpu t.py", &auto).contains("--nproc-per-node"));
    let range = [("PET_NNODES", "1:2")];
    assert!(accelerate("accelerate launch --multi_gpu t.py", &range).contains("fixed"));
    assert_eq!(refused("deepspeed t.py", &EIGHT), PlanError::DeepSpeed);
    assert_eq!(refused("python -m deepspeed.launcher.runner t.py", &EIGHT), PlanError::DeepSpeed);
    assert_eq!(refused("python3 t.py", &EIGHT), PlanError::NoRank);
    // The only process of a node has the node's rank. A script may call torchrun.
    assert_eq!(launched("python t.py", None, false, &[]).expect("ranked").set("RANK"), Some("1"));
    let ranked = [EIGHT[0], ("RANK", "8"), ("WORLD_SIZE", "16")];
    assert_eq!(launched("python t.py", None, false, &ranked).expect("ranked").mode, Mode::Env);
    let script = launched("bash start.sh", None, false, &EIGHT).expect("planned");
    assert_eq!((script.mode, script.set("NODE_RANK")), (Mode::Env, Some("1")));
    assert!(script.notes().contains("gets no RANK"), "{}", script.notes());
}

#[test]
fn checkpoints_are_saved_by_processes_that_meet_where_no_rank_hosts_a_store() {
    const NAME: &str = "DCP_USE_PREFIX_STORE";
    for (command, plugin, set) in [
        ("torchrun t.py", true, Some("1")),
        ("torchrun t.py", false, Some("1")),
        ("python t.py", false, Some("1")),
        // Here MASTER_ADDR is the host of rank 0.
        ("torchrun --rdzv-backend=c10d t.py", false, None),
    ] {
        assert_eq!(launched(command, None, plugin, &[]).expect("planned").set(NAME), set, "{command}");
        let said = launched(command, None, plugin, &[(NAME, "0")]).expect("planned");
        assert_eq!(said.set(NAME), None, "{command}: the user's word stays");
    }
}

#[test]
fn c10d_gets_a_new_store_for_each_round_if_it_may_start_ranks_again() {
    const NAME: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
    let set = |command: &str, more: &[_]| {
        launched(command, None, false, more).expect("planned").set(NAME).map(str::to_owned)
    };
    let one = Some("1".to_owned());
    assert_eq!(set("torchrun --rdzv-backend=c10d --max-restarts=3 t.py", &[]), one);
    assert_eq!(set("torchrun --rdzv-backend=c10d --max_restarts 3 t.py", &[]), one);
    assert_eq!(set("torchrun --rdzv-backend=c10d t.py", &[("PET_MAX_RESTARTS", "3")]), one);
    assert_eq!(set("torchrun --rdzv-backend=c10d t.py", &[("PET_NNODES", "1:2")]), one, "nodes come and go");
    assert_eq!(set("sh -c 'torchrun --rdzv-backend=c10d --max-restarts=$N t.py'", &[]), one, "N may be any");
    assert_eq!(set("torchrun --rdzv-backend=c10d --max-restarts=3 t.py", &[(NAME, "0")]), None);
    // Without restarts, the store of node 0's agent outlives rank 0.
    assert_eq!(set("torchrun --rdzv-backend=c10d t.py", &[]), None);
    assert_eq!(set("torchrun --rdzv-backend=c10d --max-restarts=0 t.py", &[]), None);
    assert_eq!(set("torchrun --max-restarts=3 t.py", &[]), None, "static");
}
