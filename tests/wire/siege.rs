//! Everything at once: a hostile relay, hostile clients, kills and a full disk, beside clients that count.
//!
//! A kill ends the directly connected clients, and they connect again; clients behind the honest relay notice
//! nothing. Every acknowledgement stays true, and the memory of the server stays within its limit.
//!
//! The test takes half a minute, or `RALLYPOINT_SIEGE_SECONDS` seconds (`cargo test --test wire siege`, as
//! nextest ends a test after some minutes).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rallypoint_link::{MAX_SESSIONS, WINDOW};
use rallypoint_protocol::Op;

use crate::common::peer::{HELLO, wire};
use crate::common::{PATIENCE, StopOnDrop, TestServer, eventually};
use crate::links::Client;
use crate::restarts::Mortal;

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;
/// Counting clients of each kind.
const HONEST: usize = 4;
/// The number of keys, so that a list of all keys is long.
const KEYS: usize = 10_000;
/// The number of values that each counting client keeps.
const VALUES: usize = 32;

fn length() -> Duration {
    let seconds = std::env::var("RALLYPOINT_SIEGE_SECONDS").map_or(25, |text| text.parse().expect("seconds"));
    Duration::from_secs(seconds)
}

/// The server, and its deaths and attacks.
struct Siege {
    server: Mortal,
    /// Counts before each death and after it: odd while the server is dead.
    deaths: AtomicUsize,
    stop: AtomicBool,
    /// How often each attack began.
    attacks: Mutex<BTreeMap<&'static str, usize>>,
    /// The highest memory use of any server process.
    peak: AtomicUsize,
}

impl Siege {
    fn is_over(&self) -> bool {
        self.stop.load(SeqCst)
    }

    fn kill(&self) {
        self.deaths.fetch_add(1, SeqCst);
        self.die();
        self.server.live();
        self.deaths.fetch_add(1, SeqCst);
    }

    fn die(&self) {
        self.peak.fetch_max(self.server.with(|server| server.memory("VmHWM")), SeqCst);
        self.server.die();
    }

    fn log(&self) -> String {
        self.server.with(TestServer::log)
    }

    /// Fills the journal's disk for a while, and then frees it, at first too little.
    fn fill_the_disk(&self) {
        let disk = self.server.disk();
        disk.fill();
        eventually("the journal cannot be written", || self.log().contains("cannot write to the journal"));
        // These changes are kept in memory, and written later.
        std::thread::sleep(Duration::from_secs(1));
        disk.free(256 * 1024);
        // Longer than the pause before the next attempt.
        std::thread::sleep(Duration::from_secs(6));
        disk.free(u64::MAX);
        eventually("the journal is whole again", || {
            let log = self.log();
            log.rfind("the journal is whole again") > log.rfind("cannot write to the journal")
        });
    }

    fn begun(&self, attack: &'static str) {
        *self.attacks.lock().expect("no panic").entry(attack).or_default() += 1;
    }
}

// ----- honest clients -----

/// A client that counts, and reads back the values that it has written.
struct Honest<'a> {
    siege: &'a Siege,
    name: String,
    client: Client,
    /// The acknowledged count.
    count: i64,
    values: BTreeMap<usize, Vec<u8>>,
    /// The value whose acknowledgement was lost with the server.
    doubtful: Option<(usize, Vec<u8>)>,
}

impl<'a> Honest<'a> {
    fn new(siege: &'a Siege, name: String, store: SocketAddr) -> Self {
        Self {
            siege,
            name,
            client: Client::connect(store),
            count: 0,
            values: BTreeMap::new(),
            doubtful: None,
        }
    }

    /// Writes a value and counts it. Most values are small, and some are larger than a frame.
    fn write(&mut self) -> std::io::Result<()> {
        let next = usize::try_from(self.count).expect("it counts up") + 1;
        let slot = next % VALUES;
        let value = format!("{}-{next};", self.name).into_bytes();
        let value = value.repeat(if next.is_multiple_of(64) { WINDOW / value.len() + 1 } else { 1 });
        let set = [&[Op::Set as u8][..], &wire(&self.key(slot)), &wire(&value)].concat();
        self.doubtful = Some((slot, value));
        self.client.0.write_all(&set)?;
        let count = self.client.add(self.name.as_bytes())?;
        assert_eq!(count, self.count + 1, "{}", self.name);
        self.count = count;
        self.values.extend(self.doubtful.take());
        Ok(())
    }

    fn read(&mut self, slot: usize) -> std::io::Result<()> {
        let Some(expected) = self.values.get(&slot).cloned() else { return Ok(()) };
        let found = self.get(slot)?;
        assert!(found == expected, "{}: value {slot} of {} is another", self.name, self.count);
        Ok(())
    }

    fn get(&mut self, slot: usize) -> std::io::Result<Vec<u8>> {
        let request = [&[Op::Get as u8][..], &wire(&self.key(slot))].concat();
        let len = self.client.ask(&request, 8)?;
        let len = usize::try_from(u64::from_le_bytes(len.try_into().expect("8 bytes"))).expect("short");
        self.client.ask(&[], len)
    }

    fn key(&self, slot: usize) -> Vec<u8> {
        format!("{}/{slot}", self.name).into_bytes()
    }

    fn go_on(&mut self) -> std::io::Result<()> {
        while !self.siege.is_over() {
            self.write()?;
            self.read((self.count * 7) as usize % VALUES)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Behind a relay: its connection never breaks.
    fn never_cut_off(mut self) -> i64 {
        let _stop = StopOnDrop(&self.siege.stop);
        self.go_on().unwrap_or_else(|error| panic!("{} is cut off: {error}", self.name));
        self.count
    }

    /// Connected directly: only the death of the server ends its connection.
    fn comes_again(mut self) -> i64 {
        let _stop = StopOnDrop(&self.siege.stop);
        let siege = self.siege;
        let mut deaths = siege.deaths.load(SeqCst);
        while let Err(error) = self.go_on() {
            let now = siege.deaths.load(SeqCst);
            assert!(
                now != deaths || now % 2 == 1,
                "{} is cut off by a server that lives: {error}",
                self.name
            );
            loop {
                deaths = siege.deaths.load(SeqCst);
                if self.come_again().is_ok() {
                    break;
                }
                assert!(!siege.is_over(), "{} cannot come again", self.name);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.count
    }

    /// Connects again. Every acknowledged change must be there; an unacknowledged one may be.
    fn come_again(&mut self) -> std::io::Result<()> {
        let stream = TcpStream::connect(self.siege.server.store())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        self.client = Client(stream);
        let nothing = [&HELLO[..], &[Op::Add as u8], &wire(self.name.as_bytes()), &[0; 8]].concat();
        let count = i64::from_le_bytes(self.client.ask(&nothing, 8)?.try_into().expect("8 bytes"));
        if let Some((slot, value)) = self.doubtful.clone() {
            assert!(
                (self.count..=self.count + 1).contains(&count),
                "{}: {count}, not {}",
                self.name,
                self.count
            );
            if self.get(slot)? == value {
                self.values.insert(slot, value);
            } else {
                assert_eq!(count, self.count, "{}: counted, and the value before it is not there", self.name);
            }
            self.doubtful = None;
        } else {
            assert_eq!(count, self.count, "{}", self.name);
        }
        self.count = count;
        (0..VALUES).try_for_each(|slot| self.read(slot))
    }
}

// ----- hostile clients -----

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &u32::try_from(body.len()).expect("short").to_le_bytes(), body].concat()
}

/// One frame with these bytes for this many sessions.
fn shared(sessions: usize, bytes: &[u8]) -> Vec<u8> {
    let mut body = u16::try_from(sessions).expect("few").to_le_bytes().to_vec();
    (0..u32::try_from(sessions).expect("few")).for_each(|no| body.extend(no.to_le_bytes()));
    body.extend_from_slice(bytes);
    frame(b'D', &body)
}

/// A hello of the relay "evil" in its `life`-th life.
fn hello(life: usize, connection: usize, sessions: &str) -> Vec<u8> {
    let hello =
        format!(r#"{{"name":"evil","life":{life},"connection":{connection},"sessions":[{sessions}]}}"#);
    frame(b'H', hello.as_bytes())
}

fn opened(sessions: usize) -> Vec<u8> {
    let open = |no| format!(r#"{{"no":{no},"port":0,"client":"127.0.0.1:1"}}"#);
    let opens = (0..sessions).flat_map(|no| frame(b'O', open(no).as_bytes()));
    opens.chain(shared(sessions, &HELLO)).collect()
}

/// Reads from a connection until nothing has come for a moment, or enough time has passed.
fn drain(stream: &mut TcpStream, most: Duration) {
    let (begun, mut room) = (Instant::now(), vec![0; 256 * 1024]);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(300)));
    while begun.elapsed() < most && matches!(stream.read(&mut room), Ok(1..)) {}
}

/// One life of the hostile relay.
struct Evil<'a> {
    siege: &'a Siege,
    life: usize,
    connection: usize,
}

impl Evil<'_> {
    /// A connection that has become a link with this many sessions.
    fn link(&mut self, sessions: &str, opens: usize) -> std::io::Result<TcpStream> {
        self.connection += 1;
        let mut stream = TcpStream::connect(self.siege.server.admin())?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        let upgrade = "GET /api/v1/link HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\n\
                       Upgrade: rallypoint-link/1\r\n\r\n";
        stream.write_all(upgrade.as_bytes())?;
        stream.write_all(&hello(self.life, self.connection, sessions))?;
        if opens > 0 {
            stream.write_all(&opened(opens))?;
        }
        Ok(stream)
    }

    /// One frame of an unfinished request, for as many sessions as a link may have.
    fn one_frame_for_thousands(&mut self) -> std::io::Result<()> {
        let mut stream = self.link("", MAX_SESSIONS)?;
        let begun = [&[Op::Set as u8][..], &wire(b"evil"), &(MIB as u64).to_le_bytes()].concat();
        let part = vec![b'x'; WINDOW - HELLO.len() - begun.len()];
        stream.write_all(&shared(MAX_SESSIONS, &[begun, part].concat()))?;
        drain(&mut stream, Duration::from_secs(1));
        Ok(())
    }

    /// Many large answers, and the relay takes none: it reads no byte, or it acknowledges none.
    fn no_replies_are_taken(&mut self, reads: bool) -> std::io::Result<()> {
        const SESSIONS: usize = 512;
        let mut stream = self.link("", SESSIONS)?;
        let mut requests = [&[Op::Set as u8][..], &wire(b"evil"), &wire(&vec![b'x'; WINDOW])].concat();
        stream.write_all(&shared(1, &requests))?;
        requests = [&[Op::MultiGet as u8][..], &1_u64.to_le_bytes(), &wire(b"evil")].concat().repeat(4);
        requests.extend([Op::ListKeys as u8; 4]);
        stream.write_all(&shared(SESSIONS, &requests))?;
        if reads {
            drain(&mut stream, Duration::from_secs(1));
        } else {
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    /// The list of all keys, again and again, for nobody.
    fn lists(&mut self) -> std::io::Result<()> {
        let mut stream = self.link("", 64)?;
        stream.write_all(&shared(64, &[Op::ListKeys as u8; 24]))?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }

    /// A hello that lists one session twice, for a link that exists.
    fn names_one_twice(&mut self) -> std::io::Result<()> {
        let mut first = self.link("", 8)?;
        drain(&mut first, Duration::from_millis(300));
        let point = format!(r#"{{"no":0,"received":0,"done":0,"limit":{WINDOW}}}"#);
        let mut second = self.link(&format!("{point},{point}"), 0)?;
        drain(&mut second, Duration::from_millis(300));
        Ok(())
    }

    fn garbage(&mut self) -> std::io::Result<()> {
        for garbage in
            [&b"Z\0\0\0\0"[..], b"H\xff\xff\xff\xff", b"D\x06\0\0\0\x01\0\x07\0\0\0", &[0xff; 4096]]
        {
            let mut stream = self.link("", 1)?;
            stream.write_all(garbage)?;
            drain(&mut stream, Duration::from_millis(100));
        }
        Ok(())
    }

    /// Runs one attack after the other. Their results do not matter.
    fn attack(siege: &Siege) {
        let mut lives = 0;
        while !siege.is_over() {
            lives += 1;
            let mut evil = Evil { siege, life: lives, connection: 0 };
            let (name, _) = match lives % 6 {
                0 => ("one frame for thousands", evil.one_frame_for_thousands()),
                1 => ("no byte of a reply is taken", evil.no_replies_are_taken(false)),
                2 => ("done with no reply", evil.no_replies_are_taken(true)),
                3 => ("lists by a relay", evil.lists()),
                4 => ("a session named twice", evil.names_one_twice()),
                _ => ("garbage", evil.garbage()),
            };
            siege.begun(name);
        }
    }
}

/// Clients without a relay that ask for all keys and read nothing. Some end in the middle of a request.
fn attack_directly(siege: &Siege) {
    const CLIENTS: usize = 16;
    while !siege.is_over() {
        let client = |n: usize| -> std::io::Result<TcpStream> {
            let mut stream = TcpStream::connect(siege.server.store())?;
            stream.set_nonblocking(true)?;
            stream.write_all(&HELLO)?;
            let half =
                [&[Op::Set as u8][..], &wire(b"evil"), &(MIB as u64).to_le_bytes(), &[b'x'; 9999]].concat();
            stream.write_all(if n.is_multiple_of(4) { &half } else { &[Op::ListKeys as u8; 1000] })?;
            Ok(stream)
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        siege.begun("clients that read nothing");
        std::thread::sleep(Duration::from_millis(700));
        drop(clients);
    }
}

// ----- the test -----

fn journal_is_whole(folder: &Path) {
    let mut check = std::process::Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    let check = check.args(["journal", "check"]).arg(folder).env_clear().output().expect("it runs");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

#[test]
fn nothing_is_lost_and_nobody_honest_is_cut_off_under_a_mixed_attack() {
    rallypoint_process::raise_descriptor_limit();
    let server = Mortal::start_on_disk("192m", &["--max-memory", "64MiB"]);
    let bare = server.with(|server| server.memory("VmHWM"));
    let relay = server.relay("honest");
    let mut first = Client::connect(relay.store);
    for key in 0..KEYS {
        first.set(format!("a-key-of-a-job-that-has-ended-long-ago/{key}").as_bytes(), b"");
    }
    first.add(b"keys").expect("an answer");
    let siege = Siege {
        server,
        deaths: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        attacks: Mutex::default(),
        peak: AtomicUsize::new(0),
    };
    let (begun, mut fulls) = (Instant::now(), 0);
    let counts: Vec<(String, i64)> = std::thread::scope(|scope| {
        let siege = &siege;
        let _stop = StopOnDrop(&siege.stop);
        let relayed = (0..HONEST).map(|n| (format!("relayed{n}"), relay.store, true));
        let direct = (0..HONEST).map(|n| (format!("direct{n}"), siege.server.store(), false));
        let honest: Vec<_> = relayed
            .chain(direct)
            .map(|(name, store, is_relayed)| {
                let client = Honest::new(siege, name.clone(), store);
                let count = move || if is_relayed { client.never_cut_off() } else { client.comes_again() };
                (name, scope.spawn(count))
            })
            .collect();
        scope.spawn(|| Evil::attack(siege));
        scope.spawn(|| attack_directly(siege));
        while begun.elapsed() < length() && !siege.is_over() {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_secs(2));
                siege.kill();
            }
            siege.fill_the_disk();
            siege.kill();
            fulls += 1;
        }
        std::thread::sleep(Duration::from_secs(1));
        siege.stop.store(true, SeqCst);
        honest.into_iter().map(|(name, thread)| (name, thread.join().expect("no panic"))).collect()
    });
    siege.die();
    siege.server.live();
    let mut last = Client::connect(siege.server.store());
    for (name, count) in &counts {
        assert_eq!(last.add(name.as_bytes()).expect("an answer"), count + 1, "{name}");
        assert!(*count > 20, "{name} has come to {count} only");
    }
    eventually("nothing of the attack is left", || siege.server.metric("rallypoint_link_sessions") == 1);
    siege.die();
    journal_is_whole(&siege.server.disk().folder());
    let attacks = siege.attacks.lock().expect("no panic");
    let deaths = siege.deaths.load(SeqCst) / 2;
    assert!(
        deaths >= 3 && fulls >= 1 && attacks.len() == 7,
        "{deaths} deaths, {fulls} full disks, {attacks:?}"
    );
    // The memory of the idle process is independent of the limit.
    let grown = siege.peak.load(SeqCst) - bare;
    let seen = format!(
        "{} counted, {deaths} deaths, {fulls} full disks, {attacks:?}, memory grew by {} MiB of {}",
        counts.iter().map(|(_, count)| count).sum::<i64>(),
        grown / MIB,
        LIMIT / MIB
    );
    println!("{seen}");
    assert!(grown <= LIMIT + LIMIT / 5, "{seen}");
}
