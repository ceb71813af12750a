//! Helpers for the test programs: their own server, and a client that sends raw bytes.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod cutter;
pub(crate) mod disk;
pub(crate) mod etcd;
pub(crate) mod hosts;
pub(crate) mod peer;
pub(crate) mod relay;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than any expected wait of a test; reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A `rallypoint serve` on its own ports. Dropping it ends the process.
pub(crate) struct TestServer {
    process: Child,
    /// The first store.
    pub(crate) store: SocketAddr,
    /// The admin port.
    pub(crate) admin: SocketAddr,
    /// Every store, in the order of the `--listen` flags.
    pub(crate) stores: Vec<SocketAddr>,
    dir: TempDir,
}

impl TestServer {
    /// Starts a server with one store, and with `args`. Returns once every port is bound.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with_admin("127.0.0.1:0", args)
    }

    /// Like [`Self::start`], with a given address of the admin port.
    pub(crate) fn start_with_admin(admin: &str, args: &[&str]) -> Self {
        Self::start_on("127.0.0.1:0", admin, args)
    }

    /// Like [`Self::start`], with given addresses of both ports.
    pub(crate) fn start_on(store: &str, admin: &str, args: &[&str]) -> Self {
        Self::start_as(&mut Command::new(env!("CARGO_BIN_EXE_rallypoint")), store, admin, args)
    }

    /// A server with this limit on open files.
    pub(crate) fn with_open_files(most: u32, args: &[&str]) -> Self {
        let script = format!("ulimit -n {most} && exec \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_rallypoint")]);
        Self::start_as(&mut shell, "127.0.0.1:0", "127.0.0.1:0", args)
    }

    /// A server in the control group with this list of processes, if there is one.
    pub(crate) fn start_in(procs: Option<&Path>, store: &str, args: &[&str]) -> Self {
        let Some(procs) = procs else { return Self::start_on(store, "127.0.0.1:0", args) };
        let script = format!("echo $$ > {} && exec \"$@\"", procs.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_rallypoint")]);
        Self::start_as(&mut shell, store, "127.0.0.1:0", args)
    }

    /// Starts a server through a `program` that execs it.
    pub(crate) fn start_as(program: &mut Command, store: &str, admin: &str, args: &[&str]) -> Self {
        let args = [&["serve", "--listen", store, "--admin", admin], args].concat();
        let Listening { process, stores, admin, dir } = Listening::start(program, &args);
        Self { process, store: stores[0], admin, stores, dir }
    }

    /// A server whose stores have no ports.
    pub(crate) fn without_stores(args: &[&str]) -> Self {
        let args = [&["serve", "--listen", "none", "--admin", "127.0.0.1:0"], args].concat();
        let mut program = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        let Listening { process, stores, admin, dir } = Listening::start(&mut program, &args);
        Self { process, store: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), admin, stores, dir }
    }

    /// Like [`Self::start`], with `ports` free ports for run stores.
    pub(crate) fn with_store_ports(ports: u16, args: &[&str]) -> Self {
        let ports = free_ports(ports);
        let ports = format!("{}-{}", ports.start(), ports.end());
        Self::start(&[&["--store-ports", &ports], args].concat())
    }

    /// The log of the server so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The server's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> usize {
        self.memory("VmRSS")
    }

    /// Memory in bytes, from the kernel's entry with this name.
    pub(crate) fn memory(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib: usize = line.expect("a line").trim().trim_end_matches(" kB").parse().expect("a number");
        kib * 1024
    }

    /// Sends the first signal of a container runtime that stops a container.
    pub(crate) fn terminate(&self) {
        terminate(&self.process);
    }

    /// Sends the signal of a closed terminal.
    pub(crate) fn hang_up(&self) {
        signal(&self.process, rustix::process::Signal::HUP);
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("its own child").is_some()
    }

    /// The exit code, once the process has ended.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        wait_for_end(&mut self.process)
    }
}

/// A process that listens and has reported its ports.
struct Listening {
    process: Child,
    stores: Vec<SocketAddr>,
    admin: SocketAddr,
    /// The folder of its log.
    dir: TempDir,
}

impl Listening {
    /// Starts a program with `args` for a command that takes `--ports-file`.
    fn start(program: &mut Command, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ports_file = dir.path().join("ports.json");
        let log = File::create(dir.path().join("log")).expect("a log file");
        let mut process = program
            .args(args)
            .arg("--ports-file")
            .arg(&ports_file)
            // The environment of the tests must not configure the server.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let Some((stores, admin)) = wait_for_ports(&ports_file, &mut process) else {
            let _ = process.kill();
            let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            panic!("{args:?} never told its ports; its log:\n{log}");
        };
        Self { process, stores, admin, dir }
    }
}

/// A row of unused ports. They are below the ports that the system gives to outgoing connections and to port
/// 0, and each test process begins its search elsewhere.
pub(crate) fn free_ports(count: u16) -> std::ops::RangeInclusive<u16> {
    const FROM: u32 = 20_000;
    const BLOCK: u32 = 20;
    const BLOCKS: u32 = 600;
    assert!(u32::from(count) <= BLOCK);
    let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    (0..BLOCKS)
        .map(|n| FROM + (std::process::id() + n) % BLOCKS * BLOCK)
        .map(|first| u16::try_from(first).expect("a port"))
        .map(|first| first..=first + count - 1)
        .find(|ports| ports.clone().all(is_free))
        .expect("free ports")
}

/// Whether a character is harmless: it does not end a line, control a terminal, change the text's direction,
/// or hide text.
pub(crate) fn is_harmless(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !turns && c != '\u{feff}'
}

/// Checks that every line begins with the server's time stamp, and that no character is harmful.
pub(crate) fn assert_log_is_sound(log: &str) {
    assert!(!log.is_empty(), "the server says where it listens");
    for line in log.lines() {
        let begins =
            line.starts_with("20") && line.get(26..29) == Some("Z  ") || line.get(26..28) == Some("Z ");
        let own = begins && !line.contains("Z  INFO forged: all is well \u{1b}");
        assert!(own && line.chars().all(is_harmless), "{line:?}");
    }
}

/// Sends SIGTERM.
pub(crate) fn terminate(process: &Child) {
    signal(process, rustix::process::Signal::TERM);
}

/// Sends a signal.
pub(crate) fn signal(process: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(process);
    rustix::process::kill_process(pid, signal).expect("the process is there");
}

/// The exit code of a process, which must end in time.
pub(crate) fn wait_for_end(process: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = process.try_wait().expect("its own child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("the process does not end");
}

/// Connects from another of the machine's own addresses.
pub(crate) fn connect_from(source: Ipv4Addr, server: SocketAddr) -> std::net::TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((source, 0)).into()).expect("every 127.x.y.z is ours");
    socket.connect(&server.into()).expect("the server listens");
    socket.into()
}

/// Tells threads to stop, even if the test fails.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Waits until `there` returns true.
pub(crate) fn eventually(what: &str, mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !there() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An answer of the admin port.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// The header lines, as received.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpAnswer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Sends one request to the admin port. `headers` has whole lines, each with its line end.
pub(crate) fn http(admin: SocketAddr, request_line: &str, headers: &str, body: &str) -> HttpAnswer {
    let stream = std::net::TcpStream::connect(admin).expect("the admin port listens");
    http_on(stream, request_line, headers, body)
}

/// Like [`http`], on an existing connection.
pub(crate) fn http_on(
    mut stream: std::net::TcpStream,
    request_line: &str,
    headers: &str,
    body: &str,
) -> HttpAnswer {
    use std::io::{Read, Write};
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let length = body.len();
    let request = format!(
        "{request_line} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n\
         {headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("the admin port reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the admin port answers");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    HttpAnswer { status, head: head.to_lowercase(), body: body.to_owned() }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let ended_by_itself = self.process.try_wait().ok().flatten();
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let how = ended_by_itself.map_or_else(|| "still running".into(), |status| status.to_string());
            eprintln!("the server ({how}) logged:\n{}", self.log());
        }
    }
}

fn wait_for_ports(file: &Path, process: &mut Child) -> Option<(Vec<SocketAddr>, SocketAddr)> {
    let local = |port: &serde_json::Value| {
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port.as_u64()?).ok()?)))
    };
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && matches!(process.try_wait(), Ok(None)) {
        if let Ok(text) = std::fs::read(file)
            && let Ok(ports) = serde_json::from_slice::<serde_json::Value>(&text)
        {
            let stores = ports["stores"].as_array()?.iter().map(local).collect::<Option<Vec<_>>>()?;
            return Some((stores, local(&ports["admin"])?));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}
