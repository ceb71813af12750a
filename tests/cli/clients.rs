//! The client commands: their output, their exit codes, and their messages about mistakes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{PATIENCE, TestServer, http};

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
struct Ran {
    code: Option<i32>,
    out: Vec<u8>,
    err: String,
}

impl Ran {
    fn out(&self) -> &str {
        std::str::from_utf8(&self.out).expect("UTF-8")
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that the command succeeded with this output.
    #[track_caller]
    fn gave(&self, out: &str) {
        assert_eq!((self.code, self.out()), (Some(0), out), "stderr: {}", self.err);
    }

    /// Checks that the command failed with `code`, printed nothing to stdout, and said `words` on stderr.
    #[track_caller]
    fn failed(&self, code: i32, words: &str) {
        assert_eq!((self.code, self.out()), (Some(code), ""), "stderr: {}", self.err);
        assert!(self.err.contains(words), "`{words}` is not in: {}", self.err);
    }
}

/// Runs commands in an environment that contains only the variables given here.
struct Rallypoint {
    environment: Vec<(&'static str, String)>,
}

impl Rallypoint {
    fn new() -> Self {
        Self { environment: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl std::fmt::Display) -> Self {
        self.environment.push((name, value.to_string()));
        self
    }

    fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.env_clear().envs(self.environment.iter().cloned()).args(args);
        command
    }

    fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        self.run_with_stdin(args, b"")
    }

    fn run_with_stdin<S: AsRef<OsStr>>(&self, args: &[S], stdin: &[u8]) -> Ran {
        let mut command = assert_cmd::Command::from_std(self.command(args));
        let output = command.write_stdin(stdin).timeout(PATIENCE).output().expect("the binary runs");
        let err = String::from_utf8(output.stderr).expect("UTF-8");
        Ran { code: output.status.code(), out: output.stdout, err }
    }
}

fn run(args: &[&str]) -> Ran {
    Rallypoint::new().run(args)
}

/// An address where nobody listens. The port was in use a moment ago, so the system does not soon give it to
/// anybody else.
fn closed_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("bound");
    let _client = TcpStream::connect(addr).expect("connected");
    let _server = listener.accept().expect("accepted");
    addr
}

/// A server that is not a store: on each connection it reads until `until`, and then sends `answer`.
fn other_server(until: Option<u8>, answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let Some(until) = until else {
                kept.push(stream);
                continue;
            };
            std::thread::spawn(move || {
                let mut heard = Vec::new();
                let read = BufReader::new(&stream).read_until(until, &mut heard);
                if read.is_ok() && heard.last() == Some(&until) {
                    let _ = stream.write_all(answer);
                    // Closing with unread bytes would cause a reset, which may overtake the answer.
                    let _ = stream.shutdown(Shutdown::Write);
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
            });
        }
    });
    addr
}

// ----- help -----

#[test]
fn each_flag_has_its_environment_variable() {
    let commands: [&[&str]; 21] = [
        &["serve"],
        &["run"],
        &["env"],
        &["doctor"],
        &["wait"],
        &["health"],
        &["status"],
        &["ctl", "reset"],
        &["store"],
        &["store", "get"],
        &["store", "set"],
        &["store", "add"],
        &["store", "wait"],
        &["store", "check"],
        &["store", "keys"],
        &["store", "delete"],
        &["store", "num-keys"],
        &["store", "append"],
        &["store", "queue-push"],
        &["store", "queue-pop"],
        &["store", "queue-len"],
    ];
    for command in commands {
        let ran = run(&[command, &["--help"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        // One entry for each flag, with its lines joined.
        let text = ran.out().replace("\n      --", "\0--").replace("\n  -", "\0-");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let entries: Vec<&str> = text.split('\0').filter(|entry| entry.starts_with("--")).collect();
        assert!(entries.len() >= 2, "{text}");
        for entry in entries {
            let flag = entry[2..].split([' ', '[']).next().expect("a name");
            let flag = flag.to_uppercase().replace('-', "_");
            let own = command[0].to_uppercase();
            let variables = [format!("[env: RALLYPOINT_{flag}="), format!("[env: RALLYPOINT_{own}_{flag}=")];
            assert!(variables.iter().any(|variable| entry.contains(variable)), "{command:?}: {entry}");
        }
        // Kubernetes sets these for a Service called rallypoint.
        assert!(!text.contains("RALLYPOINT_PORT=") && !text.contains("RALLYPOINT_SERVICE_"), "{text}");
    }
}

#[test]
fn the_help_of_wait_tells_all() {
    insta::assert_snapshot!(run(&["wait", "--help"]).out(), @r"
    Wait until a TCPStore answers, or until all pods are there

    Usage: rallypoint wait [OPTIONS] [HOST:PORT]

    Arguments:
      [HOST:PORT]  The store [default: from PET_RDZV_ENDPOINT, else PET_MASTER_ADDR or MASTER_ADDR with
                   their ports] [env: RALLYPOINT_ENDPOINT=]

    Options:
          --node-rank <N>            This node's rank, if the environment does not say it or contradicts
                                     itself [env: RALLYPOINT_NODE_RANK=]
          --nodes <N|MIN:MAX>        Number of nodes [env: RALLYPOINT_NODES=]
          --nproc-per-node <N|auto>  Processes on each node: a number, or auto, gpu, cpu [env:
                                     RALLYPOINT_NPROC_PER_NODE=]
          --run-id <ID>              Name of the run [env: RALLYPOINT_RUN_ID=]
          --admin <URL>              The admin port, for --nodes [default: port 29501 of the store's
                                     host] [env: RALLYPOINT_ADMIN=]
          --timeout <TIME>           Give up after this time [env: RALLYPOINT_WAIT_TIMEOUT=] [default:
                                     10m]
          --interval <TIME>          Pause between two tries [env: RALLYPOINT_WAIT_INTERVAL=] [default:
                                     1s]
          --exit-codes <CONVENTION>  Convention of the exit code. kep-3416 is that of Kubeflow Trainer's
                                     init containers: 0 pass, 10 warning, 20 try again, 30 fatal [env:
                                     RALLYPOINT_EXIT_CODES=] [default: own] [possible values: own,
                                     kep-3416]
          --json                     Print JSON [env: RALLYPOINT_JSON=]
      -h, --help                     Print help

    A server whose admin port speaks TLS:
          --tls-ca <FILE>           Authority of the server's certificate. An admin port that is not on
                                    loopback is https:// then [env: RALLYPOINT_TLS_CA=]
          --tls-client-cert <FILE>  Certificate of this client, where the server wants one [env:
                                    RALLYPOINT_TLS_CLIENT_CERT=]
          --tls-client-key <FILE>   Its key [env: RALLYPOINT_TLS_CLIENT_KEY=]

    A server with tokens:
          --token-file <FILE>  File with the token that is sent to the admin port; of a file with
                               several the first [env: RALLYPOINT_TOKEN_FILE=]

    Each try resolves the name, connects, says hello and pings. stderr says which step fails and why.
    Exit code: 0 it answers, 1 it did not in time, 2 usage
    ");
}

#[test]
fn the_program_tells_what_it_is_to_people_programs_shells_and_man() {
    let version = run(&["version"]);
    assert!(version.out().starts_with(concat!("rallypoint ", env!("CARGO_PKG_VERSION"), "\ncommit: ")));
    assert!(version.out().contains("C (PyTorch 2.2 to 2.15)"), "{}", version.out());
    assert_eq!(run(&["version", "--json"]).json()["version"], env!("CARGO_PKG_VERSION"));
    run(&["version", "-o", "json"]).failed(2, "unexpected argument '-o'");

    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert!(script.out().contains("restart-finished"), "{shell}");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pages = dir.path().join("man1");
    run(&["man", pages.to_str().expect("UTF-8")]).gave("");
    let page = std::fs::read_to_string(pages.join("rallypoint-ctl-reset.1")).expect("a page");
    assert!(page.contains(".TH rallypoint-ctl-reset 1") && page.contains("without asking"), "{page}");
    assert!(run(&["man"]).out().contains(".TH rallypoint 1"));
}

#[test]
fn the_demo_shows_who_is_missing_and_then_all_meet() {
    let ran = run(&["demo", "--late", "2s"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let order = [
        "3/4 nodes  missing: node 2 (train-2)",
        "# train-2 starts, too",
        "train-3: I am rank 3 of 4, and we meet at ",
    ];
    let at: Vec<_> = order.iter().map(|text| ran.out().find(text)).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{at:?}: {}", ran.out());
    // Variables for a job in this pod do not reach the demo.
    let pod =
        Rallypoint::new().with("RALLYPOINT_NODES", 7).with("JOB_COMPLETION_INDEX", 1).with("WORLD_SIZE", 9);
    assert_eq!(pod.run(&["demo", "--late", "0s"]).code, Some(0));
}

#[test]
fn a_variable_that_says_nothing_to_a_command_is_named_if_it_is_set() {
    let hint = "RALLYPOINT_FORMAT says nothing to `env`: its --format is set by RALLYPOINT_ENV_FORMAT";
    let at = Rallypoint::new().with("RALLYPOINT_FORMAT", "hosts").with("RALLYPOINT_NODE_RANK", "0");
    let ran = at.run(&["env"]);
    assert!(ran.code == Some(0) && ran.err.contains(hint), "{}", ran.err);
    let ran = at.run(&["env", "--format", "docker"]);
    assert!(ran.code == Some(0) && !ran.err.contains("RALLYPOINT_FORMAT"), "{}", ran.err);
}

// ----- wait -----

#[test]
fn wait_ends_when_the_store_answers() {
    let server = TestServer::start(&[]);
    let store = server.store.to_string();
    let ran = run(&["wait", &store]);
    ran.gave("");
    assert!(ran.err.contains(&format!("{store} answers after ")), "{}", ran.err);

    let answer = run(&["wait", &store, "--json"]).json();
    assert_eq!((&answer["ready"], &answer["address"]), (&true.into(), &store.into()));
}

#[test]
fn wait_sees_a_server_that_comes_late() {
    let addr = closed_port().to_string();
    let args = ["wait", &addr, "--timeout", "20s", "--interval", "20ms"];
    let mut waiting =
        Rallypoint::new().command(&args).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut lines =
        BufReader::new(waiting.stderr.take().expect("piped")).lines().map(|line| line.expect("UTF-8"));
    assert_eq!(
        lines.next().as_deref(),
        Some(&*format!("rallypoint: waiting up to 20 s for {addr} (from HOST:PORT)"))
    );
    let refused = lines.next().expect("a reason");
    assert!(refused.starts_with(&format!("rallypoint: cannot connect to {addr}: refused; ")), "{refused}");
    assert!(refused.ends_with("s left)"), "{refused}");

    let _server = TestServer::start(&["--listen", &addr]);
    let said: Vec<String> = lines.collect();
    assert!(waiting.wait().expect("it ends").success());
    // The reason did not change, so there was no line in between.
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with(&format!("rallypoint: {addr} answers after ")), "{said:?}");
}

#[test]
fn wait_gives_up_in_time_and_says_why() {
    let addr = closed_port().to_string();
    let ran = run(&["wait", &addr, "--timeout", "300ms", "--interval", "10ms"]);
    ran.failed(1, &format!("gave up on {addr} after 0.3"));
    assert_eq!(
        ran.err.matches("refused; the server is not up (yet)").count(),
        2,
        "once, and at the end: {}",
        ran.err
    );

    let answer = run(&["wait", &addr, "--timeout", "300ms", "--json"]);
    assert_eq!(answer.code, Some(1));
    let answer = answer.json();
    assert_eq!((&answer["ready"], &answer["step"]), (&false.into(), &"connect".into()));
    assert!(answer["reason"].as_str().expect("a text").contains("refused"), "{answer}");
}

#[test]
fn wait_tells_who_answers_in_a_stores_place() {
    let said = |addr: SocketAddr| {
        let ran = run(&["wait", &addr.to_string(), "--timeout", "600ms", "--interval", "50ms"]);
        assert_eq!((ran.code, ran.out()), (Some(1), ""), "{}", ran.err);
        ran.err
    };
    let err = said(other_server(Some(b'\n'), b"<!DOCTYPE HTML>\n<html>"));
    assert!(err.contains("is not a TCPStore: an HTTP server answers there"), "{err}");
    let err = said(other_server(None, b""));
    assert!(err.contains("accepts connections but did not answer within 0."), "{err}");
    let err = said(other_server(Some(0x3c), b"SSH-2.0-x\r\n"));
    assert!(err.contains("an SSH server answers there"), "{err}");
    let err = said(other_server(Some(0x3c), b""));
    assert!(err.contains("closed the connection without an answer"), "{err}");
}

#[test]
fn wait_retries_a_name_that_nobody_knows() {
    let ran = run(&["wait", "no-such-name.invalid", "--timeout", "400ms", "--interval", "50ms"]);
    ran.failed(1, "cannot resolve `no-such-name.invalid`: ");
}

#[test]
fn wait_takes_the_endpoint_from_the_environment() {
    let server = TestServer::start(&[]);
    let (host, port) = ("127.0.0.1", server.store.port());
    let named =
        Rallypoint::new().with("RALLYPOINT_ENDPOINT", server.store).with("PET_RDZV_ENDPOINT", "other:1");
    named.run(&["wait"]).gave("");
    let ran =
        Rallypoint::new().with("PET_RDZV_ENDPOINT", server.store).with("MASTER_ADDR", "other").run(&["wait"]);
    ran.gave("");
    assert!(ran.err.contains(&format!("for {host}:{port} (from PET_RDZV_ENDPOINT)")), "{}", ran.err);
    let ran = Rallypoint::new().with("MASTER_ADDR", host).with("MASTER_PORT", port).run(&["wait"]);
    ran.gave("");
    assert!(ran.err.contains("(from MASTER_ADDR and MASTER_PORT)"), "{}", ran.err);
}

#[test]
fn wait_refuses_an_endpoint_that_cannot_be_meant() {
    run(&["wait"])
        .failed(2, "no endpoint; give HOST:PORT, or set RALLYPOINT_ENDPOINT, PET_RDZV_ENDPOINT, or");
    run(&["wait", "tcp://10.96.0.7:29500"]).failed(2, "link to a Service that Kubernetes injects");
    run(&["wait", "job-0..ns.svc:29500"]).failed(2, "empty part between its dots");
    run(&["wait", "host", "--timeout", "30"]).failed(2, "write it like 30s or 10m");
    let link = Rallypoint::new().with("MASTER_ADDR", "master").with("MASTER_PORT", "tcp://10.96.0.7:29500");
    link.run(&["wait"]).failed(2, "MASTER_PORT=tcp://10.96.0.7:29500 is the link to a Service `master`");
}

// ----- store -----

#[test]
fn store_calls_give_what_was_stored() {
    let server = TestServer::start(&[]);
    let at = Rallypoint::new().with("RALLYPOINT_STORE", server.store);
    at.run(&["store", "set", "k", "value"]).gave("");
    at.run(&["store", "get", "k"]).gave("value");
    at.run(&["store", "append", "k", "+"]).gave("");
    at.run(&["store", "get", "k", "--no-wait"]).gave("value+");
    at.run(&["store", "add", "n", "5"]).gave("5\n");
    at.run(&["store", "add", "n", "-7"]).gave("-2\n");
    at.run(&["store", "add", "n"]).gave("-1\n");
    at.run(&["store", "check", "k", "n"]).gave("true\n");
    at.run(&["store", "wait", "k", "n"]).gave("");
    at.run(&["store", "num-keys"]).gave("2\n");
    at.run(&["store", "keys"]).gave("k\nn\n");
    at.run(&["store", "keys", "--raw"]).gave("/k\n/n\n");
    at.run(&["store", "get", "--raw", "/k"]).gave("value+");
    at.run(&["store", "delete", "k"]).gave("1\n");
    at.run(&["store", "queue-push", "q", "one"]).gave("");
    at.run(&["store", "queue-push", "q", "two"]).gave("");
    at.run(&["store", "queue-len", "q"]).gave("2\n");
    at.run(&["store", "queue-pop", "q"]).gave("one");
    at.run(&["store", "queue-pop", "q", "--no-wait"]).gave("two");
    let store = server.store.to_string();
    run(&["store", "--store", &store, "num-keys"]).gave("1\n");
    run(&["store", "num-keys", "--store", &store]).gave("1\n");
}

#[test]
fn store_says_what_is_missing() {
    let server = TestServer::start(&[]);
    let at =
        Rallypoint::new().with("RALLYPOINT_STORE", server.store).with("RALLYPOINT_STORE_TIMEOUT", "100ms");
    at.run(&["store", "set", "there", ""]).gave("");
    at.run(&["store", "get", "k"]).failed(1, "not there within 0.1 s: missing: `k`");
    at.run(&["store", "get", "k", "--no-wait"]).failed(1, "missing: `k`");
    at.run(&["store", "wait", "there", "k", "l"]).failed(1, "not there within 0.1 s: missing: `k`, `l`");
    at.run(&["store", "queue-pop", "q"]).failed(1, "not there within 0.1 s: queue `q` is empty");
    at.run(&["store", "queue-pop", "q", "--no-wait"]).failed(1, "queue `q` is empty");
    for (args, out) in
        [(["store", "check", "there", "k"], "false\n"), (["store", "delete", "there", "k"], "1\n")]
    {
        let ran = at.run(&args);
        assert_eq!((ran.code, ran.out()), (Some(1), out), "{}", ran.err);
        assert_eq!(ran.err, "rallypoint: missing: `k`\n");
    }
}

#[test]
fn store_takes_and_gives_any_bytes() {
    let server = TestServer::start(&[]);
    let at = Rallypoint::new().with("RALLYPOINT_STORE", server.store);
    let bytes: Vec<u8> = (0..=255).collect();
    at.run_with_stdin(&["store", "set", "bytes", "-"], &bytes).gave("");
    assert_eq!(at.run(&["store", "get", "bytes"]).out, bytes);
    let answer = at.run(&["store", "get", "bytes", "--json"]).json();
    assert!(
        answer["utf8"].is_null() && answer["base64"].as_str().expect("a text").starts_with("AAECAwQF"),
        "{answer}"
    );

    let key = OsStr::from_bytes(b"odd\xff\n");
    at.run(&[OsStr::new("store"), OsStr::new("set"), key, OsStr::new("v")]).gave("");
    at.run(&["store", "keys"]).gave("bytes\nodd\\xff\\x0a\n");
    let keys = at.run(&["store", "keys", "--json"]).json();
    assert_eq!(keys["keys"][0], serde_json::json!({"base64": "Ynl0ZXM=", "utf8": "bytes"}));
    assert_eq!(keys["keys"][1], serde_json::json!({"base64": "b2Rk/wo=", "utf8": null}));
}

#[test]
fn store_json_is_one_object_a_call() {
    let server = TestServer::start(&[]);
    let at = Rallypoint::new().with("RALLYPOINT_STORE", server.store).with("RALLYPOINT_JSON", "true");
    at.run(&["store", "set", "k", "v"]).gave("{\"done\":true}\n");
    at.run(&["store", "get", "k"]).gave("{\"base64\":\"dg==\",\"utf8\":\"v\"}\n");
    at.run(&["store", "add", "n", "2"]).gave("{\"value\":2}\n");
    at.run(&["store", "wait", "k"]).gave("{\"ready\":true}\n");
    at.run(&["store", "check", "k"]).gave("{\"missing\":[],\"ready\":true}\n");
    at.run(&["store", "num-keys"]).gave("{\"num_keys\":2}\n");
    at.run(&["store", "delete", "k"]).gave("{\"deleted\":1}\n");
    at.run(&["store", "queue-push", "q", "x"]).gave("{\"done\":true,\"queue_len\":1}\n");
    at.run(&["store", "queue-len", "q"]).gave("{\"queue_len\":1}\n");
    let ran = at.run(&["store", "check", "gone"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.json()["missing"][0]["utf8"], "gone");
}

#[test]
fn store_keys_without_the_slash_are_counted() {
    let server = TestServer::start(&[]);
    let at = Rallypoint::new().with("RALLYPOINT_STORE", server.store);
    at.run(&["store", "add", "--raw", "plain"]).gave("1\n");
    let ran = at.run(&["store", "keys"]);
    ran.gave("");
    assert_eq!(ran.err, "rallypoint: 1 more without PyTorch's leading `/`; --raw shows them\n");
    at.run(&["store", "keys", "--raw"]).gave("plain\n");
}

#[test]
fn store_errors_name_the_cause() {
    let server = TestServer::start(&["--max-value", "1KiB"]);
    let at = Rallypoint::new().with("RALLYPOINT_STORE", server.store);
    at.run_with_stdin(&["store", "set", "k", "-"], &[0; 2000]).failed(1, "the key or the value is too large");
    at.run(&["store", "set", "text", "abc"]).gave("");
    at.run(&["store", "add", "text"]).failed(1, "closed the connection at add (the value is no number?)");
    at.run(&["store", "get", "text", "--max-reply", "2B"]).failed(1, "more than 2 bytes; see --max-reply");

    let nobody = closed_port().to_string();
    run(&["store", "num-keys", "--store", &nobody]).failed(1, "refused; the server is not up (yet)");
    let admin = server.admin.to_string();
    run(&["store", "num-keys", "--store", &admin]).failed(1, "an HTTP server answers there");
    run(&["store", "num-keys", "--store", "host:port"]).failed(2, "`port` in `host:port` is no port");
    run(&["store", "get"]).failed(2, "<KEY>");
}

// ----- health -----

#[test]
fn health_is_an_exit_code() {
    let server = TestServer::start(&[]);
    let admin = server.admin.to_string();
    run(&["health", &admin]).gave("ok\n");
    run(&["health", &format!("http://{admin}/"), "--live"]).gave("ok\n");
    run(&["health", "--admin", &admin]).gave("ok\n");
    // In the server's own container, the variable holds the address on which the server listens.
    let listens = Rallypoint::new().with("RALLYPOINT_ADMIN", format!("[::]:{}", server.admin.port()));
    listens.run(&["health"]).gave("ok\n");

    let nobody = closed_port().to_string();
    run(&["health", &nobody]).failed(1, "refused");
    let store = server.store.to_string();
    run(&["health", &store]).failed(1, "closed the connection without an HTTP answer; is it the admin port");
    let silent = other_server(None, b"").to_string();
    run(&["health", &silent, "--timeout", "100ms"]).failed(1, "no answer within 0.1 s");
    let sick = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\n\r\n{\"detail\":\"not yet\"}";
    let sick = other_server(Some(b'\n'), sick).to_string();
    run(&["health", &sick]).failed(1, "/readyz: not yet (503)");
    run(&["health", "https://host"]).failed(1, "--tls-ca FILE");
}

// ----- ctl -----

#[test]
fn ctl_reset_empties_one_store_if_it_is_meant() {
    let server = TestServer::start(&["--listen", "127.0.0.1:0"]);
    let (store, other) = (server.stores[0], server.stores[1]);
    let keys = |store: SocketAddr| run(&["store", "num-keys", "--store", &store.to_string()]);
    for store in [store, other] {
        run(&["store", "set", "k", "v", "--store", &store.to_string()]).gave("");
    }
    let at = Rallypoint::new().with("RALLYPOINT_ADMIN", server.admin);
    let port = store.port().to_string();

    at.run(&["ctl", "reset", "--store", &port]).failed(2, "add --yes to do it");
    keys(store).gave("1\n");
    at.run(&["ctl", "reset", "--store", &port, "--yes"]).gave("");
    keys(store).gave("0\n");
    keys(other).gave("1\n");

    let answer = at.run(&["ctl", "reset", "--store", &other.to_string(), "--yes", "--json"]);
    assert_eq!(answer.json(), serde_json::json!({"port": other.port(), "reset": true, "closed": false}));
    keys(other).gave("0\n");
}

#[test]
fn ctl_reset_closes_the_store_of_a_round() {
    let server = TestServer::with_store_ports(2, &[]);
    let at = Rallypoint::new().with("RALLYPOINT_ADMIN", server.admin);
    let body = r#"{"node": "a", "min_nodes": 1}"#;
    let joined =
        http(server.admin, "POST /api/v1/runs/train/join", "Content-Type: application/json\r\n", body);
    let port = joined.json()["store"]["port"].as_u64().expect("a store");
    let answer = at.run(&["ctl", "reset", "--store", &port.to_string(), "--yes", "--json"]);
    assert_eq!(answer.json(), serde_json::json!({"port": port, "reset": true, "closed": true}));
    at.run(&["ctl", "reset", "--store", &port.to_string(), "--yes"]).failed(1, "no store listens on port ");
}

#[test]
fn ctl_reset_says_why_not() {
    let server = TestServer::start(&[]);
    let at = Rallypoint::new().with("RALLYPOINT_ADMIN", server.admin).with("RALLYPOINT_YES", "true");
    at.run(&["ctl", "reset", "--store", "1"]).failed(1, "no store listens on port 1; the stores are on ");
    at.run(&["ctl", "reset", "--store", "0"]).failed(2, "from 1 to 65535");
    at.run(&["ctl", "reset", "--store", "elsewhere:29500"])
        .failed(2, "the store is on `elsewhere`, but --admin is");
    at.run(&["ctl", "reset", "--token-file", "/nowhere"]).failed(2, "--token-file /nowhere: No such file");
}

#[test]
fn ctl_says_what_to_expect_of_a_run_and_forgets_it() {
    let server = TestServer::start(&[]);
    let at = Rallypoint::new().with("RALLYPOINT_ADMIN", server.admin);
    let told = at.run(&["ctl", "expect", "train", "2:4", "--names", "a,b", "--json"]);
    assert_eq!(told.json(), serde_json::json!({"run_id": "train", "min": 2, "max": 4}));
    let told = at.run(&["ctl", "expect", "train", "3"]);
    told.gave("");
    assert!(told.err.contains("of run train, 3 nodes are expected"), "{}", told.err);
    at.run(&["ctl", "expect", "train", "0"]).failed(2, "write it like 4, or 2:4");

    run(&["join", "--run-id", "r", "--nodes", "1", "--admin", &server.admin.to_string()]);
    at.run(&["ctl", "forget", "r"]).failed(2, "and drop its keys? There is no terminal to answer on");
    let gone = at.run(&["ctl", "forget", "r", "--yes"]);
    assert!(gone.code == Some(0) && gone.err.contains("run r is forgotten; keys dropped: 0"), "{}", gone.err);
    let by_flag = at.run(&["ctl", "forget", "--run-id", "nobody", "--yes"]);
    by_flag.failed(1, "nothing is known of a run `nobody`");
    at.run(&["ctl", "forget", "--yes"]).failed(2, "<RUN>");
}

#[test]
fn ctl_reset_sends_the_token() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (right, wrong, bad) =
        (file("right", "secret\n"), file("wrong", "other"), file("bad", "zw\u{f6}lf words\r\nX: y"));
    let server = TestServer::start(&["--token-file", &right]);
    let at = Rallypoint::new()
        .with("RALLYPOINT_ADMIN", server.admin)
        .with("RALLYPOINT_STORE", server.store)
        .with("RALLYPOINT_YES", "1");
    at.run(&["ctl", "reset"]).failed(1, "(401)");
    at.run(&["ctl", "reset", "--token-file", &wrong]).failed(1, "(401)");
    let ran = at.run(&["ctl", "reset", "--token-file", &bad]);
    ran.failed(2, "one word of printable ASCII");
    assert!(!ran.err.contains("lf words"), "{}", ran.err);
    at.run(&["ctl", "reset", "--token-file", &right]).gave("");
}

#[test]
fn a_client_that_is_told_to_stop_does_not_hang() {
    // The name server may take long; a look-up in progress must not keep the command from ending.
    let started = std::time::Instant::now();
    run(&["store", "num-keys", "--store", "no-such-name.invalid:1", "--timeout", "50ms"])
        .failed(1, "cannot resolve");
    assert!(started.elapsed() < Duration::from_secs(10));
}
