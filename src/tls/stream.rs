//! A connection that is plain or encrypted.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// As it came.
    Plain(TcpStream),
    /// With TLS around it.
    Tls(Box<TlsStream<TcpStream>>),
}

/// What [`Stream::exchange`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// Some bytes went out.
    Wrote,
    /// So many came in; 0 at the end.
    Read(usize),
}

impl Stream {
    /// The connection on the present runtime. An encrypted one stays where it was made, and works from here too.
    pub fn moved_here(self) -> io::Result<Self> {
        match self {
            Self::Plain(stream) => TcpStream::from_std(stream.into_std()?).map(Self::Plain),
            Self::Tls(stream) => Ok(Self::Tls(stream)),
        }
    }

    /// Writes some of `out`, or reads into `input`, as soon as one of them is possible. Loses nothing if it is dropped.
    pub async fn exchange(&mut self, out: &mut BytesMut, input: &mut BytesMut) -> io::Result<Moved> {
        poll_fn(|cx| self.poll_exchange(cx, out, input)).await
    }

    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
        input: &mut BytesMut,
    ) -> Poll<io::Result<Moved>> {
        if !out.is_empty()
            && let Poll::Ready(written) = Pin::new(&mut *self).poll_write(cx, out)
        {
            match written? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => out.advance(written),
            }
            return Poll::Ready(Ok(Moved::Wrote));
        }
        // TLS takes more than the socket does; the rest goes out when there is room.
        if let Poll::Ready(flushed) = Pin::new(&mut *self).poll_flush(cx) {
            flushed?;
        }
        tokio_util::io::poll_read_buf(Pin::new(self), cx, input).map_ok(Moved::Read)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
