//! Three members of a real etcd, and servers of which one leads.

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use super::cutter::{Cutter, Held};
use super::{eventually, free_ports, http, signal};

/// An etcd of three members, and the ports of its servers. Dropping it ends the members.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Child>,
    ports: Vec<u16>,
    /// The ports of every server; each server has its own address.
    server_ports: [u16; 2],
    /// The networks through which the members reach each other.
    roads: Vec<Cutter>,
    dir: TempDir,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        const MEMBERS: usize = 3;
        let ports: Vec<u16> = free_ports(8).collect();
        let dir = tempfile::tempdir().expect("a folder");
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let roads =
            ports[MEMBERS..2 * MEMBERS].iter().map(|&port| Cutter::start(([127, 0, 0, 1], port).into()));
        let roads: Vec<_> = roads.collect();
        let known_as = |n: usize| url(roads[n].addr.port());
        let all = (0..MEMBERS).map(|n| format!("m{n}={}", known_as(n))).collect::<Vec<_>>().join(",");
        let members = (0..MEMBERS).map(|n| {
            let log = File::create(dir.path().join(format!("log{n}"))).expect("a file");
            let (client, peer) = (url(ports[n]), url(ports[MEMBERS + n]));
            Command::new("etcd")
                .args(["--name", &format!("m{n}"), "--data-dir"])
                .arg(dir.path().join(format!("data{n}")))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &known_as(n)])
                // No test cuts the power, and this is faster.
                .args(["--initial-cluster", &all, "--unsafe-no-fsync"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("these tests need etcd: install Debian's package etcd-server")
        });
        let members = members.collect();
        let server_ports = [ports[6], ports[7]];
        let cluster = Self { members, ports, server_ports, roads, dir };
        eventually("etcd has a leader", || cluster.answers(0) && cluster.answers(1) && cluster.answers(2));
        cluster
    }

    fn answers(&self, member: usize) -> bool {
        is_up(SocketAddr::from(([127, 0, 0, 1], self.ports[member])))
    }

    /// The value of `--journal`.
    pub(crate) fn journal(&self) -> String {
        journal(&self.ports[..3])
    }

    /// A network between a server and the members, and the server's `--journal` for it.
    pub(crate) fn network(&self) -> (Vec<Cutter>, String) {
        let roads = self.ports[..3].iter().map(|&port| Cutter::start(([127, 0, 0, 1], port).into()));
        let roads: Vec<_> = roads.collect();
        let ports: Vec<_> = roads.iter().map(|road| road.addr.port()).collect();
        (roads, journal(&ports))
    }

    /// Isolates a member from the others, in both directions.
    pub(crate) fn cut_off(&self, member: usize) {
        // A member sends its own URL when it connects to another one.
        let own = format!("127.0.0.1:{}", self.roads[member].addr.port());
        for (n, road) in self.roads.iter().enumerate() {
            road.hold(if n == member { Held::All } else { Held::Saying(own.clone()) });
        }
    }

    /// The present size of the journal, roughly.
    pub(crate) fn journal_size(&self) -> usize {
        // The range from `test/jobs/segments/` to `test/jobs/segments0`.
        let all = r#"{"key":"dGVzdC9qb2JzL3NlZ21lbnRzLw==","range_end":"dGVzdC9qb2JzL3NlZ21lbnRzMA=="}"#;
        let member = SocketAddr::from(([127, 0, 0, 1], self.ports[0]));
        http(member, "POST /v3/kv/range", "Content-Type: application/json\r\n", all).body.len()
    }

    /// Connects all members again.
    pub(crate) fn heal(&self) {
        self.roads.iter().for_each(|road| road.hold(Held::None));
    }

    /// Stops members, so that they do nothing.
    pub(crate) fn pause(&self, members: std::ops::Range<usize>) {
        self.members[members].iter().for_each(pause);
    }

    /// Continues all members.
    pub(crate) fn go_on(&self) {
        self.members.iter().for_each(|member| signal(member, Signal::CONT));
    }

    /// Starts server `n`, counted from 1, at this etcd.
    pub(crate) fn serve(&self, n: u8) -> Replica {
        self.serve_by(n, &self.journal())
    }

    /// Like [`Self::serve`], with another `--journal`.
    pub(crate) fn serve_by(&self, n: u8, journal: &str) -> Replica {
        let [store, admin] = self.server_ports.map(|port| SocketAddr::from(([127, 0, 0, n], port)));
        let path = self.dir.path().join(format!("server{n}"));
        let process = Command::new(env!("CARGO_BIN_EXE_rallypoint"))
            .args(["serve", "--listen", &store.to_string(), "--admin", &admin.to_string()])
            .args(["--journal", journal])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&path).expect("a file"))
            .spawn()
            .expect("the binary starts");
        let replica = Replica { process, store, admin, log: path };
        eventually("it listens", || std::net::TcpStream::connect(admin).is_ok());
        replica
    }

    /// Starts a server and waits until it leads.
    pub(crate) fn leader(&self, n: u8) -> Replica {
        let server = self.serve(n);
        server.eventually_leads();
        server
    }
}

fn journal(ports: &[u16]) -> String {
    let members: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("etcd://{}/test/jobs", members.join(","))
}

/// An etcd of one member with TLS and one user: `root` with the password `secret`.
pub(crate) struct Guarded {
    process: Child,
    port: u16,
    /// A free address.
    pub(crate) admin: SocketAddr,
    pub(crate) dir: TempDir,
}

impl Guarded {
    pub(crate) fn start() -> Self {
        let ports: Vec<u16> = free_ports(3).collect();
        let dir = tempfile::tempdir().expect("a folder");
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        std::fs::write(dir.path().join("cert.pem"), own.cert.pem()).expect("written");
        std::fs::write(dir.path().join("key.pem"), own.signing_key.serialize_pem()).expect("written");
        let start = |scheme: &str, more: &[&str]| {
            let url = format!("{scheme}://127.0.0.1:{}", ports[0]);
            let peer = format!("http://127.0.0.1:{}", ports[1]);
            Command::new("etcd")
                .args(["--data-dir", "data", "--listen-client-urls", &url, "--advertise-client-urls", &url])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("default={peer}")])
                .args(more)
                .current_dir(dir.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(dir.path().join("log")).expect("a file"))
                .spawn()
                .expect("these tests need etcd: install Debian's package etcd-server")
        };
        let addr = SocketAddr::from(([127, 0, 0, 1], ports[0]));
        let mut open = start("http", &[]);
        eventually("etcd has a leader", || is_up(addr));
        for (what, body) in [
            ("user/add", r#"{"name":"root","password":"secret"}"#),
            ("role/add", r#"{"name":"root"}"#),
            ("user/grant", r#"{"user":"root","role":"root"}"#),
            ("enable", "{}"),
        ] {
            let done =
                http(addr, &format!("POST /v3/auth/{what}"), "Content-Type: application/json\r\n", body);
            assert_eq!(done.status, 200, "{done:?}");
        }
        open.kill().and_then(|()| open.wait()).expect("it ends");
        let process = start("https", &["--cert-file", "cert.pem", "--key-file", "key.pem"]);
        eventually("it listens again", || std::net::TcpStream::connect(addr).is_ok());
        let admin = SocketAddr::from(([127, 0, 0, 1], ports[2]));
        Self { process, port: ports[0], admin, dir }
    }

    /// A command line for this etcd, with this password.
    pub(crate) fn command(&self, args: &[&str], password: &str) -> Command {
        let file = self.dir.path().join("password");
        std::fs::write(&file, password).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        let place = format!("etcd://127.0.0.1:{}/test", self.port);
        command.args(args).arg(place).arg("--etcd-ca").arg(self.dir.path().join("cert.pem"));
        command.args(["--etcd-user", "root", "--etcd-password-file"]).arg(file).env_clear();
        command
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether this member of an etcd answers.
fn is_up(member: SocketAddr) -> bool {
    std::net::TcpStream::connect(member).is_ok()
        && http(member, "POST /v3/kv/range", "Content-Type: application/json\r\n", r#"{"key":"YQ=="}"#).status
            == 200
}

/// Stops a process, and waits until all its threads have stopped.
pub(crate) fn pause(process: &Child) {
    signal(process, Signal::STOP);
    let tasks = format!("/proc/{}/task", process.id());
    let stands = |task: std::path::PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('T'))
    };
    eventually("it stands still", || {
        std::fs::read_dir(&tasks).expect("it is there").all(|task| stands(task.expect("a thread").path()))
    });
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// One of several servers.
pub(crate) struct Replica {
    pub(crate) process: Child,
    pub(crate) store: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: std::path::PathBuf,
}

impl Replica {
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn eventually_leads(&self) {
        eventually("it leads", || self.says_of_readiness().starts_with("HTTP/1.1 200"));
    }

    /// The whole answer to a probe, or a part of it while the server changes its role.
    pub(crate) fn says_of_readiness(&self) -> String {
        use std::io::{Read, Write};
        let mut answer = Vec::new();
        if let Ok(mut stream) = std::net::TcpStream::connect(self.admin) {
            let _ = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
            let _ = stream.read_to_end(&mut answer);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let metrics = http(self.admin, "GET /metrics", "", "").body;
        let line = metrics.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with(' '));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
    }

    /// A counter's value.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.metric(name) as u64
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the server at {} logged:\n{}", self.admin, self.log());
        }
    }
}
