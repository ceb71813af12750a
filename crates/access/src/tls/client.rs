//! The client's side: the authority that it trusts, and the certificate that it shows.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{AlertDescription, CertificateError, ClientConfig, Error};

use super::files::{TlsError, authorities, certificates, key, read};
use super::{Stream, provider};

/// The client's side. The files are read for each connection, so new files take effect at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// The authority of the server's certificate.
    pub ca: PathBuf,
    /// The client's own certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why there is no encrypted connection. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Handshake {
    /// The client's own files cannot be used.
    #[error(transparent)]
    Files(#[from] TlsError),
    /// `https://` without an authority.
    #[error("TLS needs the authority of the server's certificate: --tls-ca FILE (RALLYPOINT_TLS_CA)")]
    NoAuthority,
    /// The name cannot be in a certificate.
    #[error("`{0}` is no name or address that a certificate can hold")]
    Name(String),
    /// The other side does not speak TLS.
    #[error("it does not speak TLS; write http:// if that is meant")]
    NotTls,
    /// The other side speaks an older TLS only.
    #[error("it does not speak TLS 1.3")]
    OldTls,
    /// Another authority has signed the server's certificate.
    #[error("its certificate is not of the authority in {}; is it the server's --tls-ca?", .0.display())]
    Authority(PathBuf),
    /// The certificate is for another host.
    #[error("its certificate is not for `{0}`: use a name that is in it")]
    OtherName(String),
    /// The certificate has expired, or is not valid yet.
    #[error("its certificate is out of its time: {0}")]
    OutOfTime(CertificateError),
    /// The server refuses this client's certificate, or wants one.
    #[error("it does not take this client's certificate: {}", .0.as_str().unwrap_or("refused"))]
    Refused(AlertDescription),
    /// Any other error.
    #[error("no TLS connection: {0}")]
    Other(io::Error),
}

impl Handshake {
    /// The refusal of the client's certificate. It comes after the handshake, so it is in the error of a
    /// later read or write.
    pub fn refused(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut source = Some(error);
        while let Some(error) = source {
            let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if let Some(Error::AlertReceived(alert)) = inner.and_then(|inner| inner.downcast_ref()) {
                return Some(Self::alert(*alert));
            }
            source = error.source();
        }
        None
    }

    fn alert(alert: AlertDescription) -> Self {
        if alert == AlertDescription::ProtocolVersion { Self::OldTls } else { Self::Refused(alert) }
    }
}

impl ClientTls {
    fn connector(&self) -> Result<TlsConnector, TlsError> {
        let unfit = |source| TlsError::Unfit { path: self.ca.clone(), source };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unfit)?
            .with_root_certificates(authorities(&self.ca, &read(&self.ca)?)?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((path, key_path)) => {
                let chain = certificates(path, &read(path)?)?;
                let unfit = |source| TlsError::Unfit { path: path.clone(), source };
                builder.with_client_auth_cert(chain, key(key_path, &read(key_path)?)?).map_err(unfit)?
            }
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// Encrypts a connection to `host`.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> Result<Stream, Handshake> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| Handshake::Name(host.into()))?;
        let encrypted = self.connector()?.connect(name, stream).await;
        let encrypted = encrypted.map_err(|error| self.explain(error, host))?;
        Ok(Stream::Tls(Box::new(encrypted.into())))
    }

    fn explain(&self, error: io::Error, host: &str) -> Handshake {
        use CertificateError as Bad;
        match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
            Some(Error::InvalidMessage(_)) => Handshake::NotTls,
            Some(Error::InvalidCertificate(bad)) => match bad {
                Bad::UnknownIssuer | Bad::BadSignature => Handshake::Authority(self.ca.clone()),
                Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                    Handshake::OtherName(host.into())
                }
                Bad::Expired
                | Bad::ExpiredContext { .. }
                | Bad::NotValidYet
                | Bad::NotValidYetContext { .. } => Handshake::OutOfTime(bad.clone()),
                _ => Handshake::Other(error),
            },
            Some(Error::AlertReceived(alert)) => Handshake::alert(*alert),
            _ => Handshake::Other(error),
        }
    }
}
