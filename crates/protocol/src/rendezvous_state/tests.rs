use proptest::prelude::*;
use serde_json::Value as Json;

use super::testing::{TORCH, dict, name, object, set, text};
use super::*;

fn samples() -> Vec<Json> {
    let states = include_str!("../../../../tests/data/samples/rdzv_states.json");
    serde_json::from_str(states).expect("the sample file is JSON")
}

fn sample_of_1200_nodes() -> Json {
    let state = include_str!("../../../../tests/data/samples/rdzv_state_1200_nodes.json");
    serde_json::from_str(state).expect("the sample file is JSON")
}

fn value_of(sample: &Json) -> &[u8] {
    sample["value_base64"].as_str().expect("each sample has its value").as_bytes()
}

fn pickle_of(sample: &Json) -> Vec<u8> {
    STANDARD.decode(value_of(sample)).expect("the samples are base64")
}

fn read_pickle(pickle: &[u8]) -> Result<Option<RendezvousState>, UnreadableState> {
    read(STANDARD.encode(pickle).as_bytes())
}

/// A time as the sample file has it: Python's `isoformat()` of a naive or an aware time.
fn iso(moment: UtcMicros, aware: bool) -> String {
    moment.to_string().replace('Z', if aware { "+00:00" } else { "" })
}

/// The state in the shape of the sample file's `expected`.
fn as_json(state: &RendezvousState, aware: bool) -> Json {
    let names = |nodes: &[Node]| -> Vec<String> {
        let mut names: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    let participants: serde_json::Map<_, _> =
        state.participants.iter().map(|(node, rank)| (node.to_string(), (*rank).into())).collect();
    let last_heartbeats: serde_json::Map<_, _> =
        state.last_heartbeats.iter().map(|(node, at)| (node.to_string(), iso(*at, aware).into())).collect();
    serde_json::json!({
        "round": state.round,
        "complete": state.complete,
        "deadline": state.deadline.map(|deadline| iso(deadline, aware)),
        "closed": state.closed,
        "participants": participants,
        "wait_list": names(&state.wait_list),
        "redundancy_list": names(&state.redundancy_list),
        "last_heartbeats": last_heartbeats,
    })
}

#[test]
fn every_recorded_state_is_read_as_python_reads_it() {
    let samples = samples();
    assert_eq!(samples.len(), 15);
    for sample in &samples {
        let stage = &sample["stage"];
        let state = read(value_of(sample)).unwrap_or_else(|err| panic!("{stage}: {err}"));
        // PyTorch before 2.6 wrote times without a zone.
        let aware = sample["torch"] != "2.4.1";
        let found = state.map_or(Json::Null, |state| as_json(&state, aware));
        assert_eq!(found, sample["expected"], "{stage}");
    }
}

#[test]
fn a_state_of_1200_nodes_is_read() {
    let sample = sample_of_1200_nodes();
    let state = read(value_of(&sample)).expect("readable").expect("a state");
    let expected = &sample["expected_summary"];
    let found = serde_json::json!({
        "round": state.round,
        "complete": state.complete,
        "participants": state.participants.len(),
        "heartbeats": state.last_heartbeats.len(),
        "wait_list": as_json(&state, true)["wait_list"],
        "first": [state.participants[0].0.to_string(), state.participants[0].1],
        "last": [state.participants[1199].0.to_string(), state.participants[1199].1],
    });
    assert_eq!(&found, expected);
    assert!(
        Arc::ptr_eq(&state.participants[7].0.addr, &state.last_heartbeats[7].0.addr),
        "a node that the pickle shares is kept once"
    );
}

/// Pickled by Python 3.11, from classes with the names and fields of nvidia-resiliency-ext 0.7.
const OF_NVIDIA_RESILIENCY: &str = "\
    gASV6wEAAAAAAACMNG52aWRpYV9yZXNpbGllbmN5X2V4dC5mYXVsdF90b2xlcmFuY2UuX2Z0X3JlbmRlenZvdXOUjBBfUmVuZGV6\
    dm91c1N0YXRllJOUKYGUfZQojAVyb3VuZJRLAIwIY29tcGxldGWUiIwIZGVhZGxpbmWUTowGY2xvc2VklIiMDHBhcnRpY2lwYW50\
    c5R9lChoAIwJX05vZGVEZXNjlJOUKYGUfZQojARhZGRylIwFbm9kZTCUjANwaWSUSxGMCGxvY2FsX2lklEsAdWJLAGgMKYGUfZQo\
    aA+MBW5vZGUxlGgRSxJoEksAdWJLAXWMCXdhaXRfbGlzdJSPlIwPcmVkdW5kYW5jeV9saXN0lI+UjA9sYXN0X2hlYXJ0YmVhdHOU\
    fZQoaA2MCGRhdGV0aW1llIwIZGF0ZXRpbWWUk5RDCgfqAQIDBAUAAqaUaByMCHRpbWV6b25llJOUaByMCXRpbWVkZWx0YZSTlEsA\
    SwBLAIeUUpSFlFKUhpRSlGgTaCl1jA13b3JrZXJfc3RhdGVzlH2UKGgNjCp0b3JjaC5kaXN0cmlidXRlZC5lbGFzdGljLmFnZW50\
    LnNlcnZlci5hcGmUjAtXb3JrZXJTdGF0ZZSTlIwJU1VDQ0VFREVElIWUUpRoE2gxdXViLg==";

#[test]
fn the_state_of_nvidia_resiliency_is_read_like_torchs() {
    let state = read(OF_NVIDIA_RESILIENCY.as_bytes()).expect("readable").expect("a state");
    let nodes: Vec<_> = state.participants.iter().map(|(node, rank)| (node.to_string(), *rank)).collect();
    assert_eq!(nodes, [("node0_17_0".to_owned(), 0), ("node1_18_0".to_owned(), 1)]);
    assert!(state.complete && state.closed);
}

#[test]
fn no_state_yet_is_not_an_error() {
    assert_eq!(read(b"Y2FuaW1hZGFt"), Ok(None));
    assert_eq!(read(b""), Err(UnreadableState::NotAPickle));
    assert_eq!(read(b"no base64!"), Err(UnreadableState::NotBase64));
    assert_eq!(read(&vec![b'A'; MAX_LEN + 1]), Err(UnreadableState::TooLong { len: MAX_LEN + 1 }));
}

#[test]
fn no_beginning_of_a_state_is_a_state() {
    for sample in &samples()[1..] {
        let pickle = pickle_of(sample);
        for end in 0..pickle.len() {
            let err = read_pickle(&pickle[..end]).expect_err("a part is no state");
            assert!(
                matches!(err, UnreadableState::CutOff { .. } | UnreadableState::NotAPickle),
                "{end}: {err}"
            );
        }
        let longer = [&pickle[..], b"."].concat();
        assert_eq!(read_pickle(&longer), Err(UnreadableState::Malformed { at: pickle.len() }));
    }
}

#[test]
fn every_opcode_that_no_state_has_is_refused() {
    const ALLOWED: &[u8] = b".(\x95\x94qr\x8fs\x90uebN\x88\x89KMJ\x8a\x8cXChj)\x85\x86\x87}]\x93\x81R";
    // GLOBAL, INST, OBJ, EXT1, EXT2, EXT4, PERSID, BINPERSID, NEWOBJ_EX.
    for dangerous in *b"cio\x82\x83\x84PQ\x92" {
        assert!(!ALLOWED.contains(&dangerous));
    }
    for code in 0..=255 {
        // Twelve more bytes, so that every opcode has its argument.
        let pickle = [&[0x80, 4, code][..], &[0; 12]].concat();
        let refused = read_pickle(&pickle) == Err(UnreadableState::ForbiddenOpcode { code, at: 2 });
        assert_eq!(refused, !ALLOWED.contains(&code), "{code:#04x}");
    }
}

#[test]
fn other_protocols_of_pickle_are_refused() {
    let mut pickle = pickle_of(&samples()[1]);
    for protocol in [0, 1, 2, 3, 6, 255] {
        pickle[1] = protocol;
        assert_eq!(read_pickle(&pickle), Err(UnreadableState::NotAPickle));
    }
}

fn node(addr: Vec<u8>, pid: &[u8]) -> Vec<u8> {
    object("_NodeDesc", &[("addr", addr), ("pid", pid.to_vec()), ("local_id", b"K\x00".to_vec())])
}

/// A state with no contents except `changed`.
fn state(changed: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let fields = ["round", "complete", "closed", "deadline", "participants", "wait_list", "last_heartbeats"];
    let values: [&[u8]; 7] = [b"K\x00", b"\x89", b"\x89", b"N", b"}", b"\x8f", b"}"];
    let mut fields: Vec<_> =
        fields.into_iter().zip(values).map(|(field, value)| (field, value.to_vec())).collect();
    fields.extend(changed.iter().cloned());
    [b"\x80\x04", &object("_RendezvousState", &fields)[..], b"."].concat()
}

#[test]
fn spellings_that_other_picklers_use_are_read() {
    let long_addr = "a".repeat(300);
    let long_text = [b"X\x2c\x01\x00\x00", long_addr.as_bytes()].concat();
    let nodes = [
        node(long_text, b"\x8a\x04\x00\x09\x3d\x00"),
        // BINPUT and LONG_BINPUT. The pid is recalled from the memo.
        node([text("b"), b"q\x00".to_vec()].concat(), b"M\x07\x00r\x01\x00\x00\x00"),
        node(b"h\x00".to_vec(), b"j\x01\x00\x00\x00"),
    ];
    let list = [b"](", &nodes[..2].concat()[..], b"e"].concat();
    let read = read_pickle(&state(&[("wait_list", list), ("new_in_torch_3", b"N".to_vec())]));
    let read = read.expect("readable").expect("a state");
    assert_eq!(read.wait_list[0].to_string(), format!("{long_addr}_4000000_0"));
    assert_eq!(read.wait_list[1].to_string(), "b_7_0");
    assert_eq!(read.redundancy_list, []);

    let twice = set(&nodes[1..]);
    assert_eq!(
        read_pickle(&state(&[("wait_list", twice)])),
        Err(UnreadableState::NotAState("a node is listed twice"))
    );
}

#[test]
fn times_in_other_zones_are_turned_to_utc() {
    let zone = |days: &[u8], seconds: &[u8]| {
        let delta = [name("datetime", "timedelta"), days.to_vec(), seconds.to_vec(), b"K\x00\x87R".to_vec()];
        [name("datetime", "timezone"), delta.concat(), b"\x85R".to_vec()].concat()
    };
    let at = |zone: Vec<u8>| {
        let clock = b"C\x0a\x07\xb2\x01\x02\x00\x00\x00\x00\x00\x01".to_vec();
        let moment = [name("datetime", "datetime"), clock, zone, b"\x86R".to_vec()].concat();
        read_pickle(&state(&[("deadline", moment)])).map(|state| state.expect("a state").deadline)
    };
    let day = 86_400_000_000;
    assert_eq!(at(zone(b"K\x00", b"M\x10\x0e")), Ok(Some(UtcMicros(day - 3_600_000_000 + 1))));
    assert_eq!(
        at(zone(b"J\xff\xff\xff\xff", b"J\x70\x43\x01\x00")),
        Ok(Some(UtcMicros(day + 3_600_000_000 + 1)))
    );
    assert!(matches!(at(zone(b"K\x01", b"K\x00")), Err(UnreadableState::Malformed { .. })));
    let endless = b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80";
    assert!(matches!(at(zone(endless, endless)), Err(UnreadableState::Malformed { .. })));
}

#[test]
fn nothing_outside_the_five_classes_is_named_or_called() {
    for (module, class) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("datetime", "date"),
        ("datetime", "datetime.now"),
        (TORCH, "pickle.loads"),
        ("torch", "_NodeDesc"),
    ] {
        let pickle = [b"\x80\x04", &name(module, class)[..], &text("true"), b"\x85R."].concat();
        let at = pickle.iter().position(|&byte| byte == 0x93).expect("STACK_GLOBAL is there");
        assert_eq!(read_pickle(&pickle), Err(UnreadableState::ForbiddenName { at }), "{module}.{class}");
    }
    // A class of the state is not a function, one of `datetime` is not an object, and a class is not a value
    // to keep.
    for nonsense in [
        [&name(TORCH, "_NodeDesc")[..], b")R"].concat(),
        [&name("datetime", "datetime")[..], b")\x81"].concat(),
        [&name(TORCH, "_NodeDesc")[..], b"N\x85\x81"].concat(),
        [&name("datetime", "datetime")[..], b"K\x05\x85R"].concat(),
    ] {
        let err = read_pickle(&state(&[("deadline", nonsense)])).expect_err("no state");
        assert!(matches!(err, UnreadableState::Malformed { .. }), "{err}");
    }
    let class = name("datetime", "datetime");
    assert_eq!(
        read_pickle(&state(&[("deadline", class)])),
        Err(UnreadableState::NotAState("`deadline` is no time"))
    );
}

#[test]
fn fields_of_the_wrong_kind_are_named() {
    for (field, value, message) in [
        ("round", &b"N"[..], "`round` is no number"),
        ("round", b"J\xff\xff\xff\xff", "`round` is no number"),
        ("complete", b"K\x01", "`complete` is neither true nor false"),
        ("closed", b"N", "`closed` is neither true nor false"),
        ("deadline", b"K\x00", "`deadline` is no time"),
        ("participants", b"\x8f", "`participants` is no table of ranks"),
        ("wait_list", b"}", "`wait_list` is no set of nodes"),
        ("wait_list", b"\x8f(K\x01\x90", "a node is no object"),
        ("redundancy_list", b"N", "`redundancy_list` is no set of nodes"),
        ("last_heartbeats", b"N", "`last_heartbeats` is no table of times"),
    ] {
        let err = read_pickle(&state(&[(field, value.to_vec())]));
        assert_eq!(err, Err(UnreadableState::NotAState(message)), "{field}");
    }
    for (addr, pid) in [(b"N".to_vec(), &b"K\x01"[..]), (text("a"), b"N"), (text("a"), b"J\xff\xff\xff\xff")]
    {
        let err = read_pickle(&state(&[("wait_list", set(&[node(addr, pid)]))])).expect_err("no node");
        assert!(err.to_string().contains("of a node is no"), "{err}");
    }
    for odd in [&b"\x8c\x01\xff"[..], b"\x8c\x01\n", b"\x8c\x03\xe2\x80\xae"] {
        let odd = node(odd.to_vec(), b"K\x01");
        let err = read_pickle(&state(&[("wait_list", set(&[odd]))])).expect_err("no plain text");
        assert_eq!(err, UnreadableState::NotAState("the address of a node is no plain text"));
    }
}

#[test]
fn one_long_address_cannot_be_multiplied() {
    let addr = [b"X\x00\x00\x01\x00", &b"a".repeat(65_536)[..], b"\x94"].concat();
    let mut nodes = vec![node(addr, b"K\x00")];
    for pid in 1..=200 {
        nodes.push(node(b"h\x00".to_vec(), &[b'K', pid]));
    }
    assert_eq!(
        read_pickle(&state(&[("wait_list", set(&nodes))])),
        Err(UnreadableState::NotAState("the addresses are too long"))
    );
}

#[test]
fn a_pickle_may_hold_itself() {
    // A dict that contains itself, as the table of participants.
    let own = b"}\x94K\x00h\x00s".to_vec();
    let err = read_pickle(&state(&[("participants", own)])).expect_err("no nodes in it");
    assert_eq!(err, UnreadableState::NotAState("a node is no object"));
    // An object without fields, and an object with far too many fields.
    let bare = [&name(TORCH, "_NodeDesc")[..], b")\x81"].concat();
    let many: Vec<_> = (0..=MAX_FIELDS).map(|_| (text("addr"), text("a"))).collect();
    let full = [bare.clone(), dict(&many), b"b".to_vec()].concat();
    for node in [bare, full] {
        let err = read_pickle(&state(&[("wait_list", set(&[node]))])).expect_err("no node");
        assert_eq!(err, UnreadableState::NotAState("an object is missing or has other fields"));
    }
}

/// Anything quadratic would take hours here, and anything recursive would end the process.
#[test]
fn the_worst_values_of_full_length_are_refused_at_once() {
    let len = MAX_LEN / 4 * 3;
    let many = |unit: &[u8]| {
        let units = unit.repeat(len / unit.len() - 64);
        [b"\x80\x04", &units[..]].concat()
    };
    let repeated: [&[u8]; 9] = [
        b"(",
        b"}",
        b"N\x85",
        b")\x94",
        b"](]\x94h\x00]e",
        b"\x8f(NNNNNNNNNNNNNNNNNNNNNNNN\x90",
        b"}N}s",
        b"\x8c\x00",
        b"\x95\x00\x00\x00\x00\x00\x00\x00\x00",
    ];
    for unit in repeated {
        let err = read_pickle(&many(unit)).expect_err("no state");
        assert!(matches!(err, UnreadableState::TooDeep { .. } | UnreadableState::CutOff { .. }), "{err}");
    }
    // Deep nesting with a small stack: each tuple contains the one before.
    let nested = [b"N", &b"\x85".repeat(len - 512)[..]].concat();
    let err = read_pickle(&state(&[("deadline", nested)])).expect_err("no time");
    assert_eq!(err, UnreadableState::NotAState("`deadline` is no time"));
    // As many values as fit into one set, in batches.
    let batch = [b"(", &b"N".repeat(4000)[..], b"\x90"].concat();
    let batches = [b"\x8f", &batch.repeat(len / batch.len() - 1)[..]].concat();
    let err = read_pickle(&state(&[("wait_list", batches)])).expect_err("no nodes");
    assert_eq!(err, UnreadableState::NotAState("a node is no object"));
}

/// Opcodes that a state may contain, with small arguments: most of their results fit together for a while.
fn instruction() -> impl Strategy<Value = Vec<u8>> {
    let plain = prop::sample::select(&b"(\x94\x8fs\x90uebN\x88\x89)\x85\x86\x87}]\x93\x81R."[..]);
    prop_oneof![
        6 => plain.prop_map(|opcode| vec![opcode]),
        2 => (prop::sample::select(&b"hqK"[..]), 0_u8..12).prop_map(|(opcode, arg)| vec![opcode, arg]),
        1 => (prop::sample::select(&b"jrJX"[..]), 0_u8..12)
            .prop_map(|(opcode, arg)| vec![opcode, arg, 0, 0, 0]),
        1 => prop::collection::vec(any::<u8>(), 0..10)
            .prop_map(|long| [&[0x8a, long.len() as u8], &long[..]].concat()),
        1 => any::<[u8; 10]>().prop_map(|clock| [b"C\x0a", &clock[..]].concat()),
        1 => prop::sample::select(vec!["addr", "round", "participants"]).prop_map(text),
        1 => prop::sample::select(vec![
            (TORCH, "_NodeDesc"),
            (TORCH, "_RendezvousState"),
            ("datetime", "datetime"),
        ])
            .prop_map(|(module, class)| name(module, class)),
        1 => Just([&name(TORCH, "_NodeDesc")[..], b")\x81}b"].concat()),
    ]
}

proptest! {
    #[test]
    fn arbitrary_values_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = read(&bytes);
        let _ = read_pickle(&bytes);
        let _ = read_pickle(&[b"\x80\x04", &bytes[..]].concat());
    }

    #[test]
    fn arbitrary_instructions_never_panic(
        instructions in prop::collection::vec(instruction(), 0..60),
        field in prop::sample::select(vec![
            "round", "deadline", "participants", "wait_list", "last_heartbeats",
        ]),
    ) {
        let pickle = instructions.concat();
        let _ = read_pickle(&[b"\x80\x04", &pickle[..]].concat());
        let _ = read_pickle(&state(&[(field, pickle)]));
    }

    #[test]
    fn damaged_states_never_panic(
        sample in 1_usize..15,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        doubled in any::<prop::sample::Index>(),
    ) {
        let mut pickle = pickle_of(&samples()[sample]);
        for (at, byte) in damage {
            let at = at.index(pickle.len());
            pickle[at] = byte;
        }
        let _ = read_pickle(&pickle);
        let (cut, doubled) = (cut.index(pickle.len()), doubled.index(pickle.len()));
        let _ = read_pickle(&[&pickle[..cut], &pickle[doubled..]].concat());
    }
}
