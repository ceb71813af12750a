//! A network that breaks, delays or loses bytes: it forwards everything until it is cut or held.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Forwards connections to another address. Dropping it leaves its thread behind, which does no harm.
pub(crate) struct Cutter {
    /// The address to connect to.
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The new target of connections, if it has changed.
    moved: Mutex<Option<SocketAddr>>,
    open: Mutex<Vec<TcpStream>>,
    is_closed: AtomicBool,
    /// Each connection is cut after this many bytes in one direction.
    cut_after: AtomicUsize,
    /// Received bytes are delayed by this many milliseconds.
    delay: AtomicU64,
    held: Mutex<Held>,
}

/// The connections that are held: they stay open, and their bytes arrive later.
#[derive(Clone, Default)]
pub(crate) enum Held {
    #[default]
    None,
    /// Connections whose client sent this text in its first bytes.
    Saying(String),
    All,
}

/// The first bytes from the client of a connection.
type Opening = Arc<OnceLock<Vec<u8>>>;

impl Cutter {
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared { cut_after: AtomicUsize::new(usize::MAX), ..Shared::default() });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if own.is_closed.load(Relaxed) {
                    continue;
                }
                let target = own.moved.lock().expect("no panic").unwrap_or(target);
                let Ok(server) = TcpStream::connect(target) else { continue };
                let ends = [&client, &server].map(|end| end.try_clone().expect("a descriptor"));
                own.open.lock().expect("no panic").extend(ends);
                let back =
                    (server.try_clone().expect("a descriptor"), client.try_clone().expect("a descriptor"));
                let opening = Opening::default();
                for (from, to) in [(client, server), back] {
                    let (shared, opening) = (Arc::clone(&own), Arc::clone(&opening));
                    std::thread::spawn(move || shared.pass(from, to, &opening));
                }
            }
        });
        Self { addr, shared }
    }

    /// Breaks all connections.
    pub(crate) fn cut(&self) {
        for stream in self.shared.open.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// From now on connections go to another target.
    pub(crate) fn pass_to(&self, target: SocketAddr) {
        *self.shared.moved.lock().expect("no panic") = Some(target);
    }

    /// Sets whether new connections are refused.
    pub(crate) fn close(&self, is_closed: bool) {
        self.shared.is_closed.store(is_closed, Relaxed);
    }

    /// Cuts each connection after this many bytes in one direction.
    pub(crate) fn cut_after(&self, bytes: usize) {
        self.shared.cut_after.store(bytes, Relaxed);
    }

    /// From now on every byte is delayed by this time, in each direction.
    pub(crate) fn delay(&self, by: Duration) {
        self.shared.delay.store(by.as_millis() as u64, Relaxed);
    }

    /// From now on these connections are held.
    pub(crate) fn hold(&self, which: Held) {
        *self.shared.held.lock().expect("no panic") = which;
    }
}

impl Shared {
    fn is_held(&self, opening: &Opening) -> bool {
        match &*self.held.lock().expect("no panic") {
            Held::None => false,
            Held::Saying(text) => {
                let said = opening.get().map_or(&[][..], Vec::as_slice);
                said.windows(text.len()).any(|bytes| bytes == text.as_bytes())
            }
            Held::All => true,
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, opening: &Opening) {
        let mut buffer = vec![0; 64 * 1024];
        let mut passed = 0;
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            opening.get_or_init(|| buffer[..read].to_vec());
            std::thread::sleep(Duration::from_millis(self.delay.load(Relaxed)));
            while self.is_held(opening) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let left = self.cut_after.load(Relaxed).saturating_sub(passed);
            let some = read.min(left);
            if to.write_all(&buffer[..some]).is_err() || some < read {
                break;
            }
            passed += some;
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
