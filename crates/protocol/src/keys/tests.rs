//! Every row of the table, and keys that only look like a row.

use super::*;

fn address(key: &str) -> (Vec<u8>, u32, AddressKind) {
    match classify(key.as_bytes()) {
        Some(KeyPattern::Address(a)) => (a.group.to_vec(), a.member, a.kind),
        other => panic!("{key} is {other:?}"),
    }
}

fn rendezvous(key: &str) -> (String, RendezvousPart) {
    match classify(key.as_bytes()) {
        Some(KeyPattern::Rendezvous { run_id, part, .. }) => {
            (String::from_utf8(run_id.to_vec()).expect("utf-8"), part)
        }
        other => panic!("{key} is {other:?}"),
    }
}

#[test]
fn gloo_addresses_of_every_release_are_known() {
    let gloo = AddressKind::Gloo;
    assert_eq!(address("/default_pg/0//cpu//0/3"), (b"default_pg/0//cpu//0/".to_vec(), 3, gloo));
    let sub = "/default_pg/0//9f3c//cpu//0/1";
    assert_eq!(address(sub), (b"default_pg/0//9f3c//cpu//0/".to_vec(), 1, gloo));
    // A key of 2.5.1 and older, in the agent's store.
    let old = "//worker/attempt_1/default_pg/0//cpu//0/2";
    assert_eq!(address(old), (b"/worker/attempt_1/default_pg/0//cpu//0/".to_vec(), 2, gloo));
}

#[test]
fn the_hosts_of_gloo_before_pytorch_2_4_are_known() {
    let group = b"/worker/attempt_0/default_pg/0//cpu//0/rank_".to_vec();
    let key = "//worker/attempt_0/default_pg/0//cpu//0/rank_3";
    assert_eq!(address(key), (group, 3, AddressKind::GlooHost));
    assert_eq!(classify(b"/default_pg/0//cpu//0/rank_x"), Some(KeyPattern::Unknown));
}

#[test]
fn sub_groups_and_attempts_are_told_from_the_group() {
    let group = |key: &str| match classify(key.as_bytes()) {
        Some(KeyPattern::Address(a)) => (a.sub_group.map(<[u8]>::to_vec), a.attempt()),
        other => panic!("{other:?}"),
    };
    assert_eq!(group("/default_pg/0//cpu//0/3"), (None, None));
    assert_eq!(group("/default_pg/0//cuda//0"), (None, None));
    assert_eq!(group("/default_pg/0//1//cpu//0/3"), (Some(b"1".to_vec()), None));
    assert_eq!(group("//worker/attempt_7/default_pg/0//cpu//0/2"), (None, Some(7)));
    // `split_group` makes such groups.
    assert_eq!(group("/default_pg/0//6e7899d9//0/1"), (Some(b"6e7899d9".to_vec()), None));
    assert_eq!(classify(b"/default_pg/0//0/1"), Some(KeyPattern::Unknown));
}

#[test]
fn the_role_exchange_is_an_address_only_in_runs_without_rounds() {
    let group = b"none/torchelastic/".to_vec();
    assert_eq!(address("/none/torchelastic/role_info/1"), (group.clone(), 1, AddressKind::RoleInfo));
    assert_eq!(
        address("/none/torchelastic/role_info1"),
        (group.clone(), 1, AddressKind::RoleInfo),
        "before 2.4"
    );
    assert_eq!(address("/none/torchelastic/assigned_ranks/0"), (group, 1 << 31, AddressKind::AssignedRanks));
    assert_eq!(
        rendezvous("/torch.rendezvous.job.v2.7/torchelastic/role_info/1"),
        ("job.v2".into(), RendezvousPart::RoleInfo(1))
    );
}

#[test]
fn rendezvous_keys_name_their_run() {
    assert_eq!(rendezvous("/torch.rendezvous.job.0"), ("job.0".into(), RendezvousPart::State));
    assert_eq!(rendezvous("/torch.rendezvous.job.0/MASTER_ADDR"), ("job".into(), RendezvousPart::MasterAddr));
    assert_eq!(rendezvous("/torch.rendezvous.job.0/MASTER_PORT").1, RendezvousPart::MasterPort);
    assert_eq!(rendezvous("/torch.rendezvous.job.0/MASTER").1, RendezvousPart::Other);
    assert_eq!(rendezvous("/torch.rendezvous.team/a job#1"), ("team/a job#1".into(), RendezvousPart::State));
    let master = rendezvous("/torch.rendezvous.team.1/job.0/MASTER_ADDR");
    assert_eq!(master, ("team.1/job".into(), RendezvousPart::MasterAddr));
    let round = match classify(b"/torch.rendezvous.job.v2.12/torchelastic/assigned_ranks/3") {
        Some(KeyPattern::Rendezvous { round, part: RendezvousPart::AssignedRanks(3), .. }) => round,
        other => panic!("{other:?}"),
    };
    assert_eq!(round, Some(12));
    assert_eq!(rendezvous("/torch.rendezvous.j.0/torchelastic/role_info4").1, RendezvousPart::RoleInfo(4));
    let barrier = "torchelastic/agent/terminal_state";
    assert_eq!(
        rendezvous(&format!("/torch.rendezvous.j.3/{barrier}/last_member")).1,
        RendezvousPart::ExitBarrierDone { in_round: true }
    );
    assert_eq!(
        rendezvous(&format!("/none/{barrier}/num_members")),
        ("none".into(), RendezvousPart::ExitBarrier { in_round: false })
    );
}

#[test]
fn the_exit_barrier_before_pytorch_2_4_has_a_key_for_each_agent() {
    let barrier = "torchelastic/agent/terminal_state";
    let part = |end: &str| rendezvous(&format!("/torch.rendezvous.j.3/{barrier}{end}")).1;
    assert_eq!(part("12"), RendezvousPart::ExitBarrier { in_round: true });
    assert_eq!(part("12.FIN"), RendezvousPart::ExitBarrierDone { in_round: true });
    assert_eq!(
        rendezvous(&format!("/none/{barrier}0.FIN")),
        ("none".into(), RendezvousPart::ExitBarrierDone { in_round: false })
    );
    for other in ["", "x", ".FIN", "x.FIN", "s/last_member"] {
        assert_eq!(part(other), RendezvousPart::Other, "{other}");
    }
}

#[test]
fn the_rest_of_a_process_group_is_told_apart() {
    assert_eq!(classify(b"init/"), Some(KeyPattern::WorkerCount));
    assert_eq!(address("/default_pg/0//cuda//0").2, AddressKind::NcclId);
    for leftover in [
        "/default_pg/store_based_barrier_key:0",
        "/default_pg/0//store_based_barrier_key:1:last_worker",
        "/default_pg/0//exception_dump",
        "/default_pg/0//cuda//remote_error/3",
        "/exception_dump",
        "/remote_error/3",
        "/remote_error:3",
        "/default_pg/0//cuda//remote_error:0",
        "/default_pg/0//2//cuda//remote_error:2",
        "/0//cuda//remote_error:0",
        "/default_pg/0//cuda//NCCL_0_trace_start",
        "/default_pg/0//2//cuda//NCCL_12_trace_end",
        "/0//cuda//NCCL_1_trace_start",
        "//worker/attempt_2/exception_dump",
        "/store_based_barrier_key:0",
        "/rpc_prefix_0/shutdown/READY_ID_1",
        "/rpc_prefix_0/rpcIsStaticGroup",
    ] {
        assert!(matches!(classify(leftover.as_bytes()), Some(KeyPattern::AttemptLeftover(_))), "{leftover}");
    }
    assert_eq!(
        classify(b"/default_pg/0//store_based_barrier_key:1:last_worker"),
        Some(KeyPattern::AttemptLeftover(Leftover::BarrierDone))
    );
    assert_eq!(classify(b"/default_pg/0//anything"), Some(KeyPattern::Unknown));
    assert_eq!(classify(b"/default_pg/0//xpu//0"), Some(KeyPattern::Unknown));
}

#[test]
fn the_barrier_of_nvrx_names_its_run() {
    for (key, run) in [
        ("/ft_rendezvous_barrier:job:shutdown", "job"),
        ("/ft_rendezvous_barrier:a:b:round_done_12", "a:b"),
        ("/ft_rendezvous_barrier:job/0/torchelastic/x:slot_1_rank", "job/0/torchelastic/x"),
    ] {
        assert_eq!(rendezvous(key), (run.into(), RendezvousPart::Other));
        assert!(ends_with_its_agents(key.as_bytes()));
    }
    for other in ["/ft_rendezvous_barrier:job", "/torch.rendezvous.job", "ft_rendezvous_barrier:job:shutdown"]
    {
        assert!(!ends_with_its_agents(other.as_bytes()), "{other}");
    }
}

#[test]
fn the_metadata_of_an_agent_is_known() {
    for key in [
        "/nixl/agents/metadata/agent_1/NULL_AGENT",
        "/nixl/agents/part/decode-0/prefill-1",
        "/nixl/agents/metadata/node/0/torchelastic/default_pg/",
    ] {
        assert_eq!(classify(key.as_bytes()), Some(KeyPattern::Published), "{key}");
    }
}

#[test]
fn what_is_asked_for_again_and_again_is_known() {
    for (key, is_it) in [
        ("/nixl/agents/metadata/agent_1/NULL_AGENT", true),
        ("/ft_rendezvous_barrier:job:shutdown", true),
        ("/ft_rendezvous_barrier:job:round_done_1", false),
        ("/mine:shutdown", true),
        ("init/", false),
        ("/default_pg/0//exception_dump", false),
        ("/default_pg/store_based_barrier_key:1", true),
        ("/torch.rendezvous.job", false),
    ] {
        assert_eq!(is_asked_for(key.as_bytes()), is_it, "{key}");
    }
}

#[test]
fn the_debug_server_of_a_rank_is_known() {
    assert_eq!(classify(b"/debug_server/rank12"), Some(KeyPattern::Published));
    assert_eq!(debug_server_of(b"/debug_server/rank12"), Some(12));
    assert_eq!(debug_server_of(b"/nixl/agents/metadata/a/NULL_AGENT"), None);
}

#[test]
fn other_keys_are_nobodys() {
    for key in [
        "",
        "/",
        "/init/",
        "/done_3",
        "/my_default_pg/0",
        "/torchelastic",
        "/a//cpu//0/1",
        "default_pg/0",
        "/0//cpu//0",
        "/0//cpu//x/1",
        "/10//cpu//0/1",
        "/mine/0//cpu//0/1",
        "/my_default_pg/0//cpu//0/0",
        "/mine/store_based_barrier_key:1",
        "/0/cpu/0/1",
        "/0//anything",
        "/0//cpu//other/0/1",
        "/tcp://10.0.0.1:80/0/x",
        "/tcp://10.0.0.1:80/0/1/2",
        "/http://10.0.0.1:80/0/1",
        "/torchft/1/0",
        "/torchft/manager_addr",
        "/torchft/a/0/0/1",
        "/rpc_prefix_x/addrs/w",
        "/rpc_prefix_0/mine",
        "/ft_rendezvous_barrier:job",
        "/my_ft_rendezvous_barrier:job:shutdown",
        "/nixl/agents/metadata/agent",
        "/nixl/locks/metadata/agent/",
        "/debug_server/rank",
        "/debug_server/rank_0",
        "/mine/debug_server/rank0",
        "/exception_dump_of_mine",
        "/my/exception_dump",
        "/broadcast_from/0",
        "/broadcast_from/0/x",
        "/send_to/0/1/2",
        "/remote_error_of_mine",
        "/mine//cuda//NCCL_x_trace_start",
        "/AsyncCheckpointProcess//mine",
        "/AsyncCheckpointProcess/0//cpu//0/1",
    ] {
        assert_eq!(classify(key.as_bytes()), None, "{key}");
    }
}

#[test]
fn a_group_below_a_prefix_of_the_programs_own_is_in_no_row_and_understood() {
    let below = |key: &'static str| {
        let (prefix, address) = below_own_prefix(key.as_bytes())?;
        Some((std::str::from_utf8(prefix).expect("text"), address.member, address.kind))
    };
    assert_eq!(below("/mine/0//cpu//0/1"), Some(("mine", 1, AddressKind::Gloo)));
    assert_eq!(below("/a/b/0//1//cpu//0/2"), Some(("a/b", 2, AddressKind::Gloo)));
    assert_eq!(below("/mine/0//cuda//0"), Some(("mine", 0, AddressKind::NcclId)));
    for other in ["/0//cpu//0/1", "/default_pg/0//cpu//0/1", "/mine/0//mine", "mine/0//cpu//0/1", "/mine"] {
        assert_eq!(below(other), None, "{other}");
    }
}

#[test]
fn nccl_ids_of_both_process_groups_are_known() {
    let nccl = AddressKind::NcclId;
    for old in ["/default_pg/0//cuda//0", "/default_pg/0//2//cuda//p2p:0:1"] {
        assert_eq!(address(old), (old.as_bytes()[1..].to_vec(), 0, nccl));
    }
    let group = b"default_pg/0//cuda//0/nccl_storekey_0".to_vec();
    assert_eq!(address("/default_pg/0//cuda//0/nccl_storekey_0"), (group.clone(), 0, nccl));
    assert_eq!(address("/default_pg/0//cuda//0/nccl_storekey_0_1"), (group, 1, nccl), "the second root's");
    let again = b"default_pg/0//cuda//nccl2_reconfigure/7/".to_vec();
    for key in ["claimed", "unique_id", "unique_id/nccl2:0:6:1:h:1", "grow_unique_id/nccl2:0:6:1:h:1"] {
        assert_eq!(
            address(&format!("/default_pg/0//cuda//nccl2_reconfigure/7/{key}")),
            (again.clone(), 0, nccl)
        );
    }
}

#[test]
fn second_gloo_groups_are_known() {
    let gloo = AddressKind::Gloo;
    let detail = "/default_pg/0//1//cpu//pg_wrapper:1/0/3";
    assert_eq!(address(detail), (b"default_pg/0//1//cpu//pg_wrapper:1/0/".to_vec(), 3, gloo));
    let again = "/default_pg/0//cpu//reconfigure/12/0/1";
    assert_eq!(address(again), (b"default_pg/0//cpu//reconfigure/12/0/".to_vec(), 1, gloo));
}

#[test]
fn groups_on_a_store_given_by_hand_are_known_where_the_whole_key_tells() {
    let gloo = AddressKind::Gloo;
    assert_eq!(address("/0//cpu//0/1"), (b"0//cpu//0/".to_vec(), 1, gloo));
    assert_eq!(address("/0//9f3c//cpu//0/1"), (b"0//9f3c//cpu//0/".to_vec(), 1, gloo));
    assert_eq!(address("/0//cuda//0/nccl_storekey_0").2, AddressKind::NcclId);
    let stateless = "/tcp://10.0.0.1:4000/0/2";
    assert_eq!(address(stateless), (b"tcp://10.0.0.1:4000/0/".to_vec(), 2, gloo));
    assert_eq!(address("/torchft/3/1/0/2"), (b"torchft/3/1/0/".to_vec(), 2, gloo));
    assert_eq!(address("/torchft/3/1/0"), (b"torchft/3/1/0".to_vec(), 0, AddressKind::NcclId));
    assert_eq!(address("/rpc_prefix_0/0/1"), (b"rpc_prefix_0/0/".to_vec(), 1, gloo));
    assert_eq!(address("/rpc_prefix_0/addrs/w1").2, AddressKind::RpcWorker);
    assert_eq!(address("/rpc_prefix_0/names/1").2, AddressKind::RpcWorker);
    for message in ["/broadcast_from/0/0", "/send_to/1/12"] {
        assert_eq!(classify(message.as_bytes()), Some(KeyPattern::Message));
    }
}

#[test]
fn the_group_of_those_that_write_checkpoints_is_beside_the_job() {
    let key = b"/AsyncCheckpointProcess//0//cpu//0/1";
    let Some(pattern @ KeyPattern::CheckpointAddress(address)) = classify(key) else { panic!("in no row") };
    assert_eq!((address.group, address.member), (&key[1..key.len() - 1], 1));
    assert_eq!(pattern.user(), Role::Unknown, "no rank of the job");
    let (prefix, below) = below_own_prefix(key).expect("who waits there is understood");
    assert_eq!((prefix, below.member), (&b"AsyncCheckpointProcess/"[..], 1));
}

#[test]
fn only_the_ranks_of_all_are_told_without_a_group() {
    let sub_group = |key: &str| match classify(key.as_bytes()) {
        Some(KeyPattern::Address(a)) => {
            a.sub_group.map(|name| String::from_utf8(name.to_vec()).expect("utf-8"))
        }
        other => panic!("{key} is {other:?}"),
    };
    for all in [
        "/default_pg/0//cpu//0/1",
        "//worker/attempt_1/default_pg/0//cpu//0/1",
        "/0//cpu//0/1",
        "/default_pg/0//cuda//0/nccl_storekey_0",
        "/default_pg/0//cpu//reconfigure/1/0/1",
    ] {
        assert_eq!(sub_group(all), None, "{all}");
    }
    for (key, name) in [
        ("/default_pg/0//9f3c//cpu//0/1", "9f3c"),
        ("/0//2//cpu//0/1", "2"),
        ("/default_pg/0//2//cuda//2/nccl_storekey_0", "2"),
        ("/default_pg/0//cpu//pg_wrapper:0/0/1", "pg_wrapper:0"),
        ("/tcp://10.0.0.1:4000/0/1", "tcp://10.0.0.1:4000"),
    ] {
        assert_eq!(sub_group(key).as_deref(), Some(name));
    }
}
