//! Certificates and keys in PEM files.

use std::io;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why certificates cannot be used. The message says which file, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file is not PEM, or contains something else.
    #[error("{} holds no {what} in PEM form: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What the file should contain.
        what: &'static str,
        /// The error.
        source: pem::Error,
    },
    /// The library refuses them, for example because the key belongs to another certificate.
    #[error("{} cannot be used: {source}", path.display())]
    Unfit {
        /// The file of the certificate.
        path: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
    /// The authority of clients cannot be used.
    #[error("{} cannot be used as the authority of clients: {reason}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.into(), source })
}

/// The certificates in `text`, which was read from `path`. There is at least one.
pub(super) fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |source| TlsError::Pem { path: path.into(), what: "certificate", source };
    let found: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(bad)?;
    if found.is_empty() { Err(bad(pem::Error::NoItemsFound)) } else { Ok(found) }
}

/// The private key in `text`.
pub(super) fn key(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bad = |source| TlsError::Pem { path: path.into(), what: "private key", source };
    PrivateKeyDer::from_pem_slice(text).map_err(bad)
}

/// The authorities in `text`.
pub(super) fn authorities(path: &Path, text: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, text)? {
        roots.add(certificate).map_err(|source| TlsError::Unfit { path: path.into(), source })?;
    }
    Ok(roots)
}
