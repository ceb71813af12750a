//! The server's side: its certificate, and the clients that it accepts.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::files::{TlsError, authorities, certificates, key, read};
use super::{Stream, provider};

/// The first byte of every TLS connection: a handshake record.
const HANDSHAKE: u8 = 0x16;

/// The answer to a client that does not speak TLS.
const PLAIN: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nConnection: close\r\n\r\n\
{\"title\":\"Bad Request\",\"status\":400,\"code\":\"tls\",\"detail\":\"this admin port speaks TLS only: \
   write https:// before the server's name, and name the authority of its certificate with --tls-ca \
   (RALLYPOINT_TLS_CA)\"}\n";

/// The certificate files of the admin port, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate of the server, and the chain to its authority.
    pub cert: PathBuf,
    /// The key of the server.
    pub key: PathBuf,
    /// The authority of client certificates, if clients need one.
    pub client_ca: Option<PathBuf>,
}

/// The contents of the files.
#[derive(Debug, PartialEq, Eq)]
struct Texts {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The server's side.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsConfig,
    current: Mutex<(Texts, Arc<ServerConfig>)>,
}

impl Texts {
    fn read(files: &TlsConfig) -> Result<Self, TlsError> {
        let client_ca = files.client_ca.as_deref().map(read).transpose()?;
        Ok(Self { cert: read(&files.cert)?, key: read(&files.key)?, client_ca })
    }

    fn config(&self, files: &TlsConfig) -> Result<Arc<ServerConfig>, TlsError> {
        let unfit = |source| TlsError::Unfit { path: files.cert.clone(), source };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unfit)?;
        let builder = match (&files.client_ca, &self.client_ca) {
            (Some(path), Some(text)) => {
                let roots: RootCertStore = authorities(path, text)?;
                // A client without a certificate may connect, and is told what is missing. The kubelet has
                // none when it asks for the server's health.
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| TlsError::Authority { path: path.clone(), reason: error.to_string() })?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let chain = certificates(&files.cert, &self.cert)?;
        let mut config = builder.with_single_cert(chain, key(&files.key, &self.key)?).map_err(unfit)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if self.client_ca.is_some() {
            // A resumed session shows no certificate, so an expired one would still be accepted.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }
}

impl ServerTls {
    /// Reads the files.
    pub fn new(files: TlsConfig) -> Result<Self, TlsError> {
        let texts = Texts::read(&files)?;
        let config = texts.config(&files)?;
        Ok(Self { files, current: Mutex::new((texts, config)) })
    }

    /// Reads the files again. A new certificate and its key take effect together; if they cannot be used, the
    /// old ones stay. Returns whether anything has changed. Open connections stay as they are.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let texts = Texts::read(&self.files)?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 == texts {
            return Ok(false);
        }
        let config = texts.config(&self.files)?;
        *current = (texts, config);
        Ok(true)
    }

    /// Whether clients need a certificate.
    pub const fn wants_certificate(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Encrypts a connection. `None` for a client that does not speak TLS: it has got an answer that says so.
    pub async fn accept(&self, mut stream: TcpStream) -> io::Result<Option<Stream>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Ok(None);
        }
        if first != [HANDSHAKE] {
            stream.write_all(PLAIN).await?;
            stream.shutdown().await?;
            // Unread bytes would make the close a reset, which can overtake the answer.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
            return Ok(None);
        }
        let config = Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner).1);
        let encrypted = TlsAcceptor::from(config).accept(stream).await?;
        Ok(Some(Stream::Tls(Box::new(encrypted.into()))))
    }
}

impl Stream {
    /// Whether the client has shown a certificate of the server's client authority.
    pub fn has_client_certificate(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.peer_certificates().is_some(),
        }
    }
}
