//! TLS of the admin port: certificates from files, and connections that are plain or encrypted. TLS 1.3 only.

mod client;
mod files;
mod server;
mod stream;

pub use client::{ClientTls, Handshake};
pub use files::TlsError;
pub use server::{ServerTls, TlsConfig};
pub use stream::{Moved, Stream};

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
