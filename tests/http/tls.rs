//! TLS of the admin port: the two sides of a handshake, and then the whole program.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use rallypoint_access::tls::{ClientTls, Handshake, Moved, ServerTls, TlsConfig, TlsError};
use rallypoint_node::client::{Client, Endpoint, Options};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, HandshakeKind, RootCertStore};

use crate::common::relay::TestRelay;
use crate::common::{TestServer, eventually, http};

/// A folder of certificates, and the authority that signs them.
struct Files {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let files = Self { folder: TempDir::new().expect("a folder"), authority };
        files.write("ca.pem", &files.authority.pem());
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    /// Writes NAME.pem and NAME.key for these hosts; without hosts, for a client.
    fn certify(&self, name: &str, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let usage = if hosts.is_empty() {
            ExtendedKeyUsagePurpose::ClientAuth
        } else {
            ExtendedKeyUsagePurpose::ServerAuth
        };
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.authority).expect("signed");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// The path of a file, for a command line.
    fn arg(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    fn server(&self, name: &str, client_ca: Option<&str>) -> Result<ServerTls, TlsError> {
        ServerTls::new(TlsConfig {
            cert: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            client_ca: client_ca.map(|ca| self.path(ca)),
        })
    }

    fn client(&self, identity: Option<&str>) -> ClientTls {
        let files = |name: &str| (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        ClientTls { ca: self.path("ca.pem"), identity: identity.map(files) }
    }
}

/// Connects. Returns the server's answer: whether the client has shown a certificate.
async fn talk(server: &Arc<ServerTls>, client: &ClientTls, host: &str) -> Result<bool, String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
    let server = Arc::clone(server);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a client");
        let Ok(Some(mut stream)) = server.accept(stream).await else { return };
        let is_known = stream.has_client_certificate();
        stream.write_all(&[is_known.into()]).await.expect("written");
        stream.shutdown().await.expect("shut");
    });
    let mut stream = client.connect(host, stream).await.map_err(|error| error.to_string())?;
    let mut said = [9];
    match stream.read_exact(&mut said).await {
        Ok(_) => Ok(said == [1]),
        Err(error) => {
            Err(Handshake::refused(&error).map_or(error.to_string(), |refused| refused.to_string()))
        }
    }
}

#[tokio::test]
async fn each_side_says_what_is_wrong_with_a_certificate() {
    let files = Files::new();
    files.certify("server", &["rallypoint", "127.0.0.1"], |_| ());
    files.certify("client", &[], |_| ());
    let server = Arc::new(files.server("server", Some("ca.pem")).expect("files"));
    assert_eq!(talk(&server, &files.client(None), "rallypoint").await, Ok(false));
    assert_eq!(talk(&server, &files.client(Some("client")), "127.0.0.1").await, Ok(true));
    let other = talk(&server, &files.client(None), "other").await.expect_err("its name is not in it");
    assert!(other.contains("not for `other`"), "{other}");
    let stranger = Files::new();
    stranger.certify("client", &[], |_| ());
    let foreign = talk(&server, &stranger.client(None), "rallypoint").await.expect_err("another authority");
    assert!(foreign.contains("not of the authority") && foreign.contains("ca.pem"), "{foreign}");
    let mut refused = stranger.client(Some("client"));
    refused.ca = files.path("ca.pem");
    let refused = talk(&server, &refused, "rallypoint").await.expect_err("not signed by our authority");
    assert!(refused.contains("does not take this client's certificate"), "{refused}");
    files.certify("old", &["rallypoint"], |params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    let old = Arc::new(files.server("old", None).expect("files"));
    let late = talk(&old, &files.client(None), "rallypoint").await.expect_err("expired");
    assert!(late.contains("out of its time"), "{late}");
}

/// An etcd, say, that was built to speak TLS 1.2 at most.
#[tokio::test]
async fn a_server_with_an_older_tls_is_not_said_to_refuse_a_certificate() {
    let files = Files::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("its address")).await.expect("connected");
    let (mut server, _) = listener.accept().await.expect("accepted");
    let fatal_protocol_version = [21, 3, 3, 0, 2, 2, 70];
    server.write_all(&fatal_protocol_version).await.expect("written");
    let said = files.client(None).connect("rallypoint", stream).await.expect_err("no TLS").to_string();
    assert_eq!(said, "it does not speak TLS 1.3");
}

#[tokio::test]
async fn new_files_hold_for_new_connections_and_bad_ones_do_not() {
    let files = Files::new();
    files.certify("server", &["a"], |_| ());
    let server = Arc::new(files.server("server", None).expect("files"));
    assert!(!server.reload().expect("nothing new"));
    files.certify("server", &["b"], |_| ());
    assert!(talk(&server, &files.client(None), "a").await.is_ok(), "nobody has looked");
    assert!(server.reload().expect("both files are good"));
    assert!(talk(&server, &files.client(None), "b").await.is_ok());
    files.certify("other", &["c"], |_| ());
    std::fs::copy(files.path("other.key"), files.path("server.key")).expect("copied");
    let error = server.reload().expect_err("the key is of another certificate").to_string();
    assert!(error.contains("server.pem cannot be used"), "{error}");
    assert!(talk(&server, &files.client(None), "b").await.is_ok(), "the last good pair is used");
    files.write("server.key", "nothing");
    assert!(server.reload().expect_err("no key").to_string().contains("holds no private key in PEM form"));
    files.write("server.pem", "nothing");
    let error = server.reload().expect_err("no certificate").to_string();
    assert!(error.contains("server.pem holds no certificate in PEM form"), "{error}");
    let missing = files.server("missing", None).expect_err("no file").to_string();
    assert!(missing.starts_with("cannot read "), "{missing}");
}

#[tokio::test]
async fn a_session_goes_on_only_where_no_certificate_is_asked_for() {
    let files = Files::new();
    files.certify("server", &["rallypoint"], |_| ());
    // The kind of a client's second handshake. The handshake is over when the client has read a byte after
    // it.
    let again = async |server: &Arc<ServerTls>, config: &Arc<ClientConfig>| {
        let mut last = None;
        for _ in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
            let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
            let server = Arc::clone(server);
            tokio::spawn(async move {
                let (stream, _) = listener.accept().await.expect("a client");
                let Ok(Some(mut stream)) = server.accept(stream).await else { return };
                stream.write_all(b"x").await.expect("written");
                stream.shutdown().await.expect("shut");
            });
            let name = ServerName::try_from("rallypoint").expect("a name");
            let mut stream =
                TlsConnector::from(Arc::clone(config)).connect(name, stream).await.expect("known");
            let read = stream.read_exact(&mut [0]).await;
            last = read.is_ok().then(|| stream.get_ref().1.handshake_kind()).flatten();
            if read.is_err() {
                break;
            }
        }
        last
    };
    let config = |who: &Files, name: &str| {
        let certs = CertificateDer::pem_file_iter(who.path(&format!("{name}.pem"))).expect("PEM");
        let key = PrivateKeyDer::from_pem_file(who.path(&format!("{name}.key"))).expect("a key");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(files.path("ca.pem")).expect("PEM")).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("versions").with_root_certificates(roots);
        let certs = certs.map(|cert| cert.expect("PEM")).collect();
        Arc::new(builder.with_client_auth_cert(certs, key).expect("a pair"))
    };
    files.certify("client", &[], |_| ());
    let client = config(&files, "client");
    let open = Arc::new(files.server("server", None).expect("files"));
    assert_eq!(again(&open, &client).await, Some(HandshakeKind::Resumed), "nothing was asked for");
    let asks = Arc::new(files.server("server", Some("ca.pem")).expect("files"));
    assert_eq!(again(&asks, &client).await, Some(HandshakeKind::Full), "its certificate is looked at again");
    // So a client whose certificate has expired, or whose authority has been replaced, is refused.
    let other = Files::new();
    files.write("ca.pem.next", &std::fs::read_to_string(other.path("ca.pem")).expect("read"));
    std::fs::copy(files.path("ca.pem.next"), files.path("client-ca.pem")).expect("copied");
    let moved = Arc::new(files.server("server", Some("client-ca.pem")).expect("files"));
    assert_eq!(again(&moved, &client).await, None);
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_what_to_write() {
    let files = Files::new();
    files.certify("server", &["rallypoint"], |_| ());
    let server = files.server("server", None).expect("files");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let addr = listener.local_addr().expect("bound");
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    stream.write_all(b"GET /livez HTTP/1.1\r\n\r\n").await.expect("written");
    stream.shutdown().await.expect("shut");
    let (accepted, _) = listener.accept().await.expect("a client");
    assert!(server.accept(accepted).await.expect("an answer").is_none());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("write https://"), "{answer}");
    // And the reverse.
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("written");
    });
    let stream = TcpStream::connect(addr).await.expect("connected");
    let error = files.client(None).connect("rallypoint", stream).await.expect_err("plain").to_string();
    assert!(error.contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn what_a_full_socket_does_not_take_goes_out_later() {
    const BYTES: usize = 8 << 20;
    let files = Files::new();
    files.certify("server", &["rallypoint"], |_| ());
    let server = files.server("server", None).expect("files");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
    let client = files.client(None);
    let (accepted, connected) = tokio::join!(
        async { server.accept(listener.accept().await.expect("a client").0).await },
        client.connect("rallypoint", stream)
    );
    let (mut sender, mut reader) = (accepted.expect("TLS").expect("TLS"), connected.expect("TLS"));
    let sent = tokio::spawn(async move {
        let (mut out, mut input) = (bytes::BytesMut::from(&vec![7; BYTES][..]), bytes::BytesMut::new());
        // Until the reader answers that it has everything.
        while sender.exchange(&mut out, &mut input).await.expect("moved") == Moved::Wrote || input.is_empty()
        {
        }
    });
    let mut read = vec![0; BYTES];
    reader.read_exact(&mut read).await.expect("all of it");
    assert!(read.iter().all(|byte| *byte == 7));
    reader.write_all(b"done").await.expect("written");
    reader.flush().await.expect("flushed");
    sent.await.expect("no panic");
}

/// A server that requires certificates, and the files for its clients.
struct Secured {
    files: Files,
    server: TestServer,
}

impl Secured {
    fn start() -> Self {
        let files = Files::new();
        files.certify("server", &["127.0.0.1"], |_| ());
        files.certify("client", &[], |_| ());
        let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| files.arg(name));
        let server = TestServer::start(&["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca]);
        Self { files, server }
    }

    /// The flags of a client; without `identity` only the authority.
    fn shows(&self, identity: bool) -> Vec<String> {
        let flag = |name: &str, file: &str| [name.to_owned(), self.files.arg(file)];
        let mut args = flag("--tls-ca", "ca.pem").to_vec();
        if identity {
            args.extend(flag("--tls-client-cert", "client.pem"));
            args.extend(flag("--tls-client-key", "client.key"));
        }
        args
    }

    fn url(&self) -> String {
        format!("https://{}", self.server.admin)
    }

    fn run(&self, args: &[&str], identity: bool) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(args).args(self.shows(identity)).output().expect("it runs")
    }

    fn relay(&self, identity: bool) -> TestRelay {
        let shows = self.shows(identity);
        let shows: Vec<&str> = shows.iter().map(String::as_str).collect();
        TestRelay::start_for(&self.url(), "train-0", &shows)
    }
}

#[test]
fn the_whole_api_wants_a_certificate_and_health_does_not() {
    let secured = Secured::start();
    let url = secured.url();
    let plain = http(secured.server.admin, "GET /livez", "", "");
    assert_eq!(plain.status, 400);
    assert!(plain.body.contains("write https://"), "{}", plain.body);
    let health = secured.run(&["health", &url], false);
    assert!(health.status.success(), "{health:?}");
    let refused = secured.run(&["status", &url], false);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("wants a client certificate"), "{said}");
    let status = secured.run(&["status", &url, "--json"], true);
    assert!(status.status.success(), "{status:?}");
    let untrusted =
        Command::new(env!("CARGO_BIN_EXE_rallypoint")).args(["status", &url]).output().expect("it runs");
    let said = String::from_utf8_lossy(&untrusted.stderr);
    assert!(said.contains("--tls-ca"), "{said}");
}

#[tokio::test]
async fn stock_clients_come_through_a_relay_that_shows_a_certificate() {
    let secured = Secured::start();
    let relay = secured.relay(true);
    let store = Endpoint::new("127.0.0.1", relay.store.port()).expect("an address");
    let mut client = Client::connect(&store, &Options::default()).await.expect("a store");
    assert_eq!(client.add(b"n", 1).await.expect("an answer"), 1);
    // More bytes than a socket takes at once, in both directions.
    let value = vec![7; 4 << 20];
    client.set(b"big", &value).await.expect("sent");
    assert_eq!(client.try_get(b"big").await.expect("an answer").expect("there"), value);
    let body = r#"{"node":"a","join_id":"1","min_nodes":1,"wait_seconds":15}"#;
    let joined = http(relay.admin, "POST /api/v1/runs/r/join", "Content-Type: application/json\r\n", body);
    assert_eq!(joined.json()["round"], 1, "{}", joined.body);
    let stranger = secured.relay(false);
    eventually("it says why it has no link", || stranger.log().contains("answered 401"));
}

#[test]
fn the_python_package_speaks_tls_as_the_program_does() {
    let secured = Secured::start();
    let program = "import rallypoint, sys; print(rallypoint.peers('r', 1, endpoint=sys.argv[1], name='a', \
                   timeout=15)[0].name)";
    let python = |identity: bool| {
        let mut command = Command::new("python3");
        command.args(["-c", program, &secured.url()]);
        command.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
        command.env("RALLYPOINT_TLS_CA", secured.files.arg("ca.pem"));
        if identity {
            command.env("RALLYPOINT_TLS_CLIENT_CERT", secured.files.arg("client.pem"));
            command.env("RALLYPOINT_TLS_CLIENT_KEY", secured.files.arg("client.key"));
        }
        command.output().expect("python3 runs")
    };
    let joined = python(true);
    assert_eq!(String::from_utf8_lossy(&joined.stdout).trim(), "a", "{joined:?}");
    let refused = python(false);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("wants a client certificate"), "{said}");
}

#[test]
fn the_load_generator_plays_relays_over_tls() {
    let secured = Secured::start();
    let (store, url) = (secured.server.store.to_string(), secured.url());
    let args = ["bench", "mix", &store, "-z", "200ms", "--links", "2", "--per-link", "4", "--admin", &url];
    let ran = secured.run(&args, true);
    assert!(ran.status.success(), "{ran:?}");
    let refused = secured.run(&args, false);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("certificate"), "{refused:?}");
}
