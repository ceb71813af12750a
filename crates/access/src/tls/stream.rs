//! A connection that is plain or encrypted.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// Bytes that are read in one step.
const READ_AT_ONCE: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_AT_ONCE].into_boxed_slice());
}

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// A plain connection.
    Plain(TcpStream),
    /// An encrypted connection.
    Tls(Box<TlsStream<TcpStream>>),
}

/// What [`Stream::exchange`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// Some bytes went out.
    Wrote,
    /// This many bytes came in. 0 at the end of the stream.
    Read(usize),
}

impl Stream {
    /// Moves the connection to the present runtime. An encrypted one stays in its old runtime, and can be
    /// used from here.
    pub fn moved_here(self) -> io::Result<Self> {
        match self {
            Self::Plain(stream) => TcpStream::from_std(stream.into_std()?).map(Self::Plain),
            Self::Tls(stream) => Ok(Self::Tls(stream)),
        }
    }

    /// Writes some of `out`, or reads into `input`, whichever is possible first. Cancel safe. Many thousands
    /// of connections wait here, so empty buffers hold no memory, and `input` gets room only for bytes that
    /// have arrived.
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
                written if written == out.len() => *out = BytesMut::new(),
                written => out.advance(written),
            }
            return Poll::Ready(Ok(Moved::Wrote));
        }
        // TLS accepts more bytes than the socket does. The rest goes out when the socket has room.
        if let Poll::Ready(flushed) = Pin::new(&mut *self).poll_flush(cx) {
            flushed?;
        }
        if input.is_empty() {
            *input = BytesMut::new();
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut space = ReadBuf::new(scratch);
            ready!(Pin::new(self).poll_read(cx, &mut space))?;
            input.extend_from_slice(space.filled());
            Poll::Ready(Ok(Moved::Read(space.filled().len())))
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn what_came_once_is_not_held_for_ever() {
        const LARGE: usize = 300_000;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut peer = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let mut stream = Stream::Plain(listener.accept().await.expect("a peer").0);
        let (mut out, mut input) = (BytesMut::from(&b"answer"[..]), BytesMut::new());
        peer.write_all(&vec![7; LARGE]).await.expect("sent");
        while input.len() < LARGE || !out.is_empty() {
            stream.exchange(&mut out, &mut input).await.expect("moved");
        }
        assert!(input.iter().all(|&byte| byte == 7));
        assert_eq!(out.capacity(), 0, "it is written");
        input.clear();
        peer.write_all(b"x").await.expect("sent");
        assert_eq!(stream.exchange(&mut out, &mut input).await.expect("moved"), Moved::Read(1));
        assert!(input.capacity() < 100, "{}", input.capacity());
    }
}
