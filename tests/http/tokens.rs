//! The rights of each token: over the API, over links, and for every client of both.

use std::io::Read;
use std::net::TcpStream;
use std::process::{Command, Output};

use rallypoint_node::client::{Client, Endpoint, Options};
use tempfile::TempDir;

use crate::common::relay::TestRelay;
use crate::common::{HttpAnswer, TestServer, eventually, http};

const TOKENS: &str = "boss operator\nmate member\na-mate member a-*\na-look viewer a-*\nlook viewer\n";

/// A server with tokens, and a file for each token.
struct Guarded {
    folder: TempDir,
    server: TestServer,
}

impl Guarded {
    fn start(args: &[&str]) -> Self {
        let folder = TempDir::new().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        write("tokens", TOKENS);
        TOKENS.lines().filter_map(|line| line.split(' ').next()).for_each(|token| write(token, token));
        let tokens = folder.path().join("tokens").display().to_string();
        let own = ["--token-file", &tokens, "--require-token", "--test-settings", "reload-every=200ms"];
        let server = TestServer::with_store_ports(8, &[&own[..], args].concat());
        Self { folder, server }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn ask(&self, token: &str, request: &str, body: &str) -> HttpAnswer {
        let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        http(self.server.admin, request, &headers, body)
    }

    /// Joins a run as a node.
    fn join(&self, token: &str, run: &str) -> HttpAnswer {
        let body = r#"{"node":"n","join_id":"1","min_nodes":1,"wait_seconds":15}"#;
        self.ask(token, &format!("POST /api/v1/runs/{run}/join"), body)
    }

    fn run(&self, token: Option<&str>, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(args).env("RALLYPOINT_ADMIN", self.server.admin.to_string());
        if let Some(token) = token {
            command.env("RALLYPOINT_TOKEN_FILE", self.file(token));
        }
        command.output().expect("it runs")
    }

    fn relay(&self, token: &str, name: &str) -> TestRelay {
        TestRelay::start(self.server.admin, name, &["--token-file", &self.file(token)])
    }
}

fn store_of(relay: &TestRelay) -> Endpoint {
    Endpoint::new("127.0.0.1", relay.store.port()).expect("an address")
}

/// The status, the code and the words of a refusal.
fn refusal(answer: &HttpAnswer) -> (u16, String, String) {
    let problem = answer.json();
    let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    (answer.status, text("code"), text("detail"))
}

#[test]
fn every_request_needs_a_token_of_its_role() {
    let guarded = Guarded::start(&[]);
    let admin = guarded.server.admin;
    let health = ["/livez", "/readyz", "/"];
    assert!(health.iter().all(|path| http(admin, &format!("GET {path}"), "", "").status == 200));
    for path in ["/metrics", "/api/v1/runs", "/api/v1/openapi.json", "/api/v1/events", "/nowhere"] {
        let (status, code, said) = refusal(&http(admin, &format!("GET {path}"), "", ""));
        assert_eq!((status, code.as_str()), (401, "no_token"), "{path}");
        assert!(said.contains("--require-token") && said.contains("RALLYPOINT_TOKEN_FILE"), "{said}");
        assert_eq!(
            guarded.ask("boss2", &format!("GET {path}"), "").json()["code"],
            "unknown_token",
            "{path}"
        );
    }
    assert_eq!(guarded.ask("look", "GET /api/v1/runs", "").status, 200);
    let (status, code, said) = refusal(&guarded.join("look", "r"));
    assert_eq!((status, code.as_str()), (403, "wrong_role"));
    assert!(
        said.contains("role member") && said.contains("line 5") && said.contains("role viewer"),
        "{said}"
    );
    assert_eq!(guarded.join("mate", "r").status, 200);
    let (status, _, said) = refusal(&guarded.ask("mate", "DELETE /api/v1/runs/r", ""));
    assert!(status == 403 && said.contains("role operator") && said.contains("line 2"), "{said}");
    assert_eq!(guarded.ask("boss", "DELETE /api/v1/runs/r", "").status, 200);
    assert!(!guarded.server.log().contains("boss"));
}

#[test]
fn metrics_can_be_open_to_all() {
    let guarded = Guarded::start(&["--open-metrics"]);
    assert_eq!(http(guarded.server.admin, "GET /metrics", "", "").status, 200);
    assert_eq!(http(guarded.server.admin, "GET /api/v1/runs", "", "").status, 401);
}

#[test]
fn a_token_for_some_runs_neither_sees_nor_touches_others() {
    let guarded = Guarded::start(&[]);
    for run in ["a-1", "b-1"] {
        assert_eq!(guarded.join("mate", run).status, 200);
        let opened = guarded.ask("mate", "POST /api/v1/stores", &format!(r#"{{"run_id":"{run}"}}"#));
        assert_eq!(opened.status, 201, "{}", opened.body);
    }
    let shown = |token: &str, what: &str| guarded.ask(token, &format!("GET /api/v1/{what}"), "").body;
    for what in ["runs", "stores"] {
        assert!(shown("look", what).contains("b-1"), "{what}");
        let seen = shown("a-look", what);
        assert!(seen.contains("a-1") && !seen.contains("b-1"), "{what}: {seen}");
    }
    let others = [
        ("GET /metrics", ""),
        ("GET /api/v1/runs/b-1", ""),
        ("GET /api/v1/runs/b-1/announce", ""),
        ("POST /api/v1/runs/b-1/close", r#"{"node":"n"}"#),
        ("POST /api/v1/stores", r#"{"run_id":"b-1"}"#),
        ("POST /api/v1/barriers/b-1/arrive", r#"{"participant":"p","arrival_id":"1","world_size":1}"#),
    ];
    for (request, body) in others {
        let (status, code, said) = refusal(&guarded.ask("a-mate", request, body));
        assert_eq!((status, code.as_str()), (403, "other_run"), "{request}");
        assert!(said.contains("line 3") && said.contains("`a-*`"), "{said}");
    }
    assert_eq!(guarded.join("a-mate", "b-1").status, 403);
    assert_eq!(guarded.join("a-mate", "a-2").status, 200);
}

#[test]
fn a_stream_of_events_tells_of_own_runs_only_and_ends_with_its_token() {
    use std::io::{BufRead, BufReader, Write};
    let guarded = Guarded::start(&[]);
    let mut stream = std::net::TcpStream::connect(guarded.server.admin).expect("it listens");
    stream.set_read_timeout(Some(crate::common::PATIENCE)).expect("a socket option");
    let request = "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                   Cookie: x=1; rallypoint_token=YS1sb29r\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.contains("snapshot")), "a cookie holds the token");
    for run in ["b-1", "a-1"] {
        assert_eq!(guarded.join("mate", run).status, 200);
    }
    let until: Vec<String> = lines.by_ref().take_while(|line| !line.contains(r#""run_id":"a-1""#)).collect();
    assert!(!until.iter().any(|line| line.contains("b-1")), "{until:?}");
    std::fs::write(guarded.file("tokens"), "boss operator\n").expect("written");
    assert!(!lines.any(|line| line.contains("b-1")), "it ends");
}

#[tokio::test]
async fn a_relay_brings_its_token_for_its_clients() {
    let guarded = Guarded::start(&[]);
    let stranger = TestRelay::start(guarded.server.admin, "stranger", &[]);
    eventually("it says why it has no link", || stranger.log().contains("this server wants a token"));
    let looker = guarded.relay("look", "looker");
    eventually("it says why it has no link", || looker.log().contains("role member"));
    let all = guarded.relay("mate", "all");
    let mut client = Client::connect(&store_of(&all), &Options::default()).await.expect("a store");
    client.set(b"secret", b"1").await.expect("sent");
    assert_eq!(client.add(b"n", 1).await.expect("an answer"), 1);
    // Requests through the relay get the relay's token, unless the client sends its own.
    assert_eq!(http(all.admin, "GET /api/v1/runs", "", "").status, 200);
    assert_eq!(http(all.admin, "DELETE /api/v1/runs/r", "", "").status, 403);
    let own = http(all.admin, "DELETE /api/v1/runs/r", "Authorization: Bearer boss\r\n", "");
    assert_eq!(own.status, 404, "{}", own.body);
    // Relays for some runs only share a first store of their own.
    let first = guarded.relay("a-mate", "first");
    let mut mine = Client::connect(&store_of(&first), &Options::default()).await.expect("a store");
    assert_eq!(mine.try_get(b"secret").await.expect("an answer"), None);
    assert_eq!(mine.add(b"n", 1).await.expect("an answer"), 1);
    let second = guarded.relay("a-mate", "second");
    let mut other = Client::connect(&store_of(&second), &Options::default()).await.expect("a store");
    assert_eq!(other.add(b"n", 1).await.expect("an answer"), 2, "one for all of that pattern");
    let links = guarded.ask("a-look", "GET /api/v1/links", "").body;
    assert!(links.contains("second") && !links.contains(r#""all""#), "{links}");
}

#[tokio::test]
async fn a_token_is_changed_and_revoked_without_a_restart() {
    let guarded = Guarded::start(&["--link-grace", "1s"]);
    let relay = guarded.relay("mate", "train-0");
    let mut client = Client::connect(&store_of(&relay), &Options::default()).await.expect("a store");
    assert_eq!(client.add(b"n", 1).await.expect("an answer"), 1);
    // A rotation: first the server accepts both tokens, then the client has the new one, then the old one
    // goes.
    std::fs::write(guarded.file("tokens"), "boss operator\nmate member\nnew member\n").expect("written");
    eventually("the new one holds", || guarded.ask("new", "GET /api/v1/links", "").status == 200);
    std::fs::write(guarded.file("mate"), "new\n").expect("written");
    std::fs::write(guarded.file("tokens"), "boss operator\nnew member\n").expect("written");
    eventually("the relay is back with the new one", || relay.log().contains("is back"));
    assert_eq!(client.add(b"n", 1).await.expect("an answer"), 2, "its clients go on");
    // The token is revoked.
    std::fs::write(guarded.file("tokens"), "boss operator\n").expect("written");
    eventually("the link ends", || relay.log().contains("does not have this token"));
    eventually("its clients are gone", || {
        guarded.ask("boss", "GET /api/v1/links", "").json()["links"] == serde_json::json!([])
    });
    std::fs::write(guarded.file("tokens"), "boss owner\n").expect("written");
    eventually("a bad file is named", || guarded.server.log().contains("line 1: the second word is none of"));
    assert_eq!(guarded.ask("boss", "GET /api/v1/links", "").status, 200, "what it said before holds");
}

#[test]
fn every_command_sends_the_token() {
    let guarded = Guarded::start(&[]);
    let refused = guarded.run(None, &["status"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("--token-file"), "{said}");
    let health = guarded.run(None, &["health"]);
    assert!(health.status.success(), "{health:?}");
    let commands: [&[&str]; 6] = [
        &["status"],
        &["join", "--run-id", "r", "--node", "n", "--nodes", "1"],
        &["leave", "--run-id", "r", "--node", "n"],
        &["barrier", "b", "--nodes", "1", "--node", "p"],
        &[
            "wait",
            "--run-id",
            "w",
            "--nodes",
            "1",
            "--admin",
            &guarded.server.admin.to_string(),
            &guarded.server.store.to_string(),
        ],
        &["ctl", "close", "r", "--yes"],
    ];
    for args in commands {
        let done = guarded.run(Some("tokens"), args);
        assert!(done.status.success(), "{args:?}: {done:?}");
    }
    let usage = Command::new(env!("CARGO_BIN_EXE_rallypoint")).args(["serve", "--require-token"]).output();
    assert_eq!(usage.expect("it runs").status.code(), Some(2));
}

#[test]
fn the_python_package_sends_the_token() {
    let guarded = Guarded::start(&[]);
    let program = "import rallypoint, sys; print(rallypoint.peers('r', 1, endpoint=sys.argv[1], name='a', \
                   timeout=15)[0].name)";
    let python = |token: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", program, &guarded.server.admin.to_string()]);
        command.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
        command.env("RALLYPOINT_TOKEN_FILE", guarded.file(token)).output().expect("python3 runs")
    };
    let joined = python("mate");
    assert_eq!(String::from_utf8_lossy(&joined.stdout).trim(), "a", "{joined:?}");
    let refused = String::from_utf8_lossy(&python("a-mate").stderr).into_owned();
    assert!(refused.contains("for runs `a-*`, and not for run `r`"), "{refused}");
}

#[test]
fn a_browser_has_its_token_in_a_cookie() {
    let guarded = Guarded::start(&[]);
    let admin = guarded.server.admin;
    let json = "Content-Type: application/json\r\n";
    let wrong = http(admin, "POST /api/v1/login", json, r#"{"token":"bos"}"#);
    assert_eq!(refusal(&wrong).1, "unknown_token");
    let answer = http(admin, "POST /api/v1/login", json, r#"{"token":"a-look"}"#);
    assert_eq!(answer.json(), serde_json::json!({"role": "viewer", "runs": "a-*"}));
    let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    let own = "rallypoint_token=YS1sb29r";
    let wanted = format!("{own}; path=/; httponly; samesite=strict").to_lowercase();
    assert_eq!(cookie, wanted);
    assert_eq!(http(admin, "GET /api/v1/runs", &format!("Cookie: {own}\r\n"), "").status, 200);
    let foreign = format!("Cookie: {own}\r\nOrigin: http://evil.example\r\n");
    assert_eq!(http(admin, "GET /api/v1/runs", &foreign, "").status, 403);
    let gone = http(admin, "DELETE /api/v1/login", "", "");
    assert!(gone.status == 204 && gone.head.contains("max-age=0"), "{}", gone.head);
}

#[test]
fn a_relay_adds_its_token_unless_the_client_shows_one() {
    let guarded = Guarded::start(&[]);
    let relay = guarded.relay("look", "train-0");
    // A browser also sends the cookies of other servers on the host.
    for (headers, status) in [
        ("", 200),
        ("Cookie: _xsrf=2; session=abc\r\n", 200),
        ("Cookie: _xsrf=2\r\nCookie: my_rallypoint_token=bG9vaw\r\n", 200),
        ("Cookie: _xsrf=2; rallypoint_token=d3Jvbmc\r\n", 401),
        ("Authorization: Bearer wrong\r\n", 401),
    ] {
        let answer = http(relay.admin, "GET /api/v1/runs", headers, "");
        assert_eq!(answer.status, status, "{headers}: {answer:?}");
    }
}

#[tokio::test]
async fn a_relay_takes_the_clients_of_one_user_only() {
    let server = TestServer::start(&[]);
    let own = rustix::process::getuid().as_raw();
    let mine = TestRelay::start(server.admin, "mine", &["--client-uid", &own.to_string()]);
    let mut client = Client::connect(&store_of(&mine), &Options::default()).await.expect("a store");
    assert_eq!(client.add(b"n", 1).await.expect("an answer"), 1);
    assert_eq!(http(mine.admin, "GET /livez", "", "").status, 200);
    let other = TestRelay::start(server.admin, "other", &["--client-uid", &(own + 1).to_string()]);
    assert!(Client::connect(&store_of(&other), &Options::default()).await.is_err());
    let said = format!("refused, for it is of user {own} and only user {} may connect", own + 1);
    eventually("it says who was refused", || other.log().contains(&said));
    assert!(
        TcpStream::connect(other.admin).is_ok_and(|mut api| api.read(&mut [0]).is_ok_and(|read| read == 0))
    );
}

#[tokio::test]
async fn stores_without_ports_are_reached_by_relays_only() {
    let dir = TempDir::new().expect("a folder");
    let journal = dir.path().join("journal").display().to_string();
    let server = TestServer::without_stores(&["--journal", &journal]);
    assert!(server.stores.is_empty());
    eventually("the log says it", || server.log().contains("to relays only"));
    let relay = TestRelay::start(server.admin, "train-0", &[]);
    let mut client = Client::connect(&store_of(&relay), &Options::default()).await.expect("a store");
    assert_eq!(client.add(b"n", 1).await.expect("an answer"), 1);
    // The own store of a run has no port on the server either; the relay gives it a local one.
    let json = "Content-Type: application/json\r\n";
    let opened = http(relay.admin, "POST /api/v1/stores", json, r#"{"run_id":"r"}"#);
    let port = opened.json()["port"].as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port");
    let own = Endpoint::new("127.0.0.1", port).expect("an address");
    let mut own = Client::connect(&own, &Options::default()).await.expect("a store");
    assert_eq!(own.add(b"n", 5).await.expect("an answer"), 5);
    // A client without a relay is told so, and gets no unreachable address.
    let join = r#"{"node":"n","join_id":"1","min_nodes":1}"#;
    for (path, body) in [("/api/v1/stores", r#"{"run_id":"r"}"#), ("/api/v1/runs/r/join", join)] {
        let (status, code, said) = refusal(&http(server.admin, &format!("POST {path}"), json, body));
        assert_eq!((status, code.as_str()), (409, "relays_only"), "{path}");
        assert!(said.contains("start a relay on this node"), "{said}");
    }
    let program = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(args).env("RALLYPOINT_ADMIN", server.admin.to_string()).output().expect("it runs")
    };
    let wait = program(&["wait", "127.0.0.1:1"]);
    let said = String::from_utf8_lossy(&wait.stderr);
    assert!(
        wait.status.code() == Some(1) && said.contains("serve --listen none") && said.contains("relay"),
        "{said}"
    );
    let doctor = program(&["doctor", "127.0.0.1:1"]);
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("port-open") && said.contains("serve --listen none"), "{said}");
    let status = program(&["status"]);
    assert!(status.status.success(), "{status:?}");
    // `run` brings its own relay.
    let script = "import os, socket; socket.create_connection((os.environ['MASTER_ADDR'], \
                  int(os.environ['MASTER_PORT'])))";
    let run = program(&[
        "run",
        "--endpoint",
        "127.0.0.1:1",
        "--nodes",
        "1",
        "--run-id",
        "w",
        "--mode",
        "env",
        "python3",
        "-c",
        script,
    ]);
    assert!(run.status.success() && String::from_utf8_lossy(&run.stderr).contains("a relay to"), "{run:?}");
    let both = program(&["serve", "--listen", "none,127.0.0.1:0"]);
    assert_eq!(both.status.code(), Some(2));
}
