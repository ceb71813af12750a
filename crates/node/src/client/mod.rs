//! A small asynchronous client of any TCPStore, rallypoint's or PyTorch's (2.2 and later, libuv or legacy).
//! The command line and tests use it; the server never does.
//!
//! Keys are as on the wire: PyTorch's Python clients put a `/` before each key, and this client does not.
//! Every wait has a time limit, every reply has a largest size, and no reply can cause a panic.

mod answerer;
mod connect;
mod error;
pub mod http;
pub mod link;
pub mod mistaken;
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use rallypoint_protocol::{KeyList, PairList, Payload, Request};
use wire::Wire;

pub use answerer::Answerer;
pub use connect::{open, own_nonce, resolve, source_towards};

pub use crate::endpoint::parse_port;
pub use crate::endpoint::{Endpoint, EndpointError};
pub use error::{ConnectError, Error, Outlook, Step, StepError};

/// Time limits and the largest reply of a client.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Time limit for resolving, for connecting, and for greeting, each for one address.
    pub step: Duration,
    /// Time limit for each call, without the time that the call itself is meant to wait.
    pub call: Duration,
    /// Largest reply in bytes.
    pub max_reply: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { step: Duration::from_secs(10), call: Duration::from_secs(30), max_reply: 256 << 20 }
    }
}

/// A connection to a store that has answered. It takes one call at a time. If a call is dropped before its
/// end, or fails with anything but [`Error::NotInTime`], the connection cannot be used any more.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
    peer: SocketAddr,
    pings: bool,
    call: Duration,
}

impl Client {
    /// Resolves the endpoint and tries its addresses in turn.
    pub async fn connect(endpoint: &Endpoint, options: &Options) -> Result<Self, ConnectError> {
        let failed = |failures| ConnectError { endpoint: endpoint.clone(), failures };
        let addrs = resolve(endpoint, options.step).await.map_err(|error| failed(vec![error]))?;
        let mut failures = Vec::new();
        for addr in addrs {
            match Self::connect_addr(addr, options).await {
                Ok(client) => return Ok(client),
                Err(error) => failures.push(error),
            }
        }
        Err(failed(failures))
    }

    /// Connects to one address, says hello, and checks that the store answers.
    pub async fn connect_addr(addr: SocketAddr, options: &Options) -> Result<Self, StepError> {
        let greeted = connect::greet(addr, options.step).await?;
        let wire = Wire::new(greeted.stream, options.max_reply);
        Ok(Self { wire, peer: addr, pings: greeted.pings, call: options.call })
    }

    /// Whether the server knows PING (PyTorch from 2.5 on).
    pub fn pings(&self) -> bool {
        self.pings
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns once the server has done every earlier call. Calls without a reply (`set`, `append`,
    /// `multi_set`, `queue_push`) are certain only then.
    pub async fn sync(&mut self) -> Result<(), Error> {
        if !self.pings {
            return self.num_keys().await.map(|_| ());
        }
        let nonce = own_nonce();
        self.wire.send(&Request::Ping { nonce }, self.call).await?;
        match self.wire.nonce().await? {
            echo if echo == nonce => self.wire.done(),
            other => return Err(self.wire.garbage(format!("{other:#010x} instead of {nonce:#010x}"))),
        }
        Ok(())
    }

    /// Stores a value. Not certain before [`sync`](Self::sync).
    pub async fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.tell(&Request::Set { key, value: Payload::borrowed(value) }).await
    }

    /// Appends to a value. Not certain before [`sync`](Self::sync).
    pub async fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.tell(&Request::Append { key, value }).await
    }

    /// Stores several values. Not certain before [`sync`](Self::sync).
    pub async fn multi_set<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), Error> {
        let pairs: PairList = pairs.into_iter().collect();
        self.tell(&Request::MultiSet(pairs.as_pairs())).await
    }

    /// Appends to a queue. Not certain before [`sync`](Self::sync).
    pub async fn queue_push(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.tell(&Request::QueuePush { key, value: Payload::borrowed(value) }).await
    }

    /// Waits for a key and reads its value.
    pub async fn get(&mut self, key: &[u8], limit: Duration) -> Result<Bytes, Error> {
        self.wait(&[key], limit).await?;
        self.read(key).await
    }

    /// Reads a value, if the key is present now.
    pub async fn try_get(&mut self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        if self.check(&[key]).await? { self.read(key).await.map(Some) } else { Ok(None) }
    }

    /// Waits for several keys and reads their values, in the order of the keys.
    pub async fn multi_get<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        limit: Duration,
    ) -> Result<Vec<Bytes>, Error> {
        self.wait(keys, limit).await?;
        let list: KeyList = keys.iter().collect();
        self.wire.send(&Request::MultiGet(list.as_list()), self.call).await?;
        let values = self.wire.strings(keys.len() as u64).await?;
        self.wire.done();
        Ok(values)
    }

    /// Adds to the decimal number in a key; an absent key counts as 0. Returns the sum.
    pub async fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, Error> {
        self.wire.send(&Request::Add { key, delta }, self.call).await?;
        let sum = self.wire.number().await?;
        self.wire.done();
        Ok(sum)
    }

    /// Stores `desired` if the key holds `expected`, or if the key is absent and `expected` is empty. Returns
    /// the new value of the key. If the key stays absent, PyTorch's protocol returns `expected`.
    pub async fn compare_set(&mut self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Bytes, Error> {
        let desired = Payload::borrowed(desired);
        self.wire.send(&Request::CompareSet { key, expected, desired }, self.call).await?;
        let value = self.wire.string().await?;
        self.wire.done();
        Ok(value)
    }

    /// Whether all keys are present now.
    pub async fn check<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<bool, Error> {
        let list: KeyList = keys.iter().collect();
        self.wire.send(&Request::Check(list.as_list()), self.call).await?;
        let missing = self.wire.code().await?;
        self.wire.done();
        Ok(!missing)
    }

    /// Waits until all keys are present. A non-empty queue counts as a present key.
    pub async fn wait<K: AsRef<[u8]>>(&mut self, keys: &[K], limit: Duration) -> Result<(), Error> {
        let list: KeyList = keys.iter().collect();
        self.wire.send(&Request::Wait(list.as_list()), self.call).await?;
        self.await_release(limit).await
    }

    /// Arrives at a barrier and waits for `world_size` arrivals. A barrier can be used once in the life of
    /// its key.
    pub async fn barrier(&mut self, key: &[u8], world_size: i64, limit: Duration) -> Result<(), Error> {
        self.wire.send(&Request::Barrier { key, world_size }, self.call).await?;
        self.await_release(limit).await
    }

    /// The number of plain keys.
    pub async fn num_keys(&mut self) -> Result<u64, Error> {
        self.wire.send(&Request::NumKeys, self.call).await?;
        let count = self.wire.count().await?;
        self.wire.done();
        Ok(count)
    }

    /// Deletes a key. Returns whether it was present.
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.wire.send(&Request::Delete { key }, self.call).await?;
        let deleted = self.wire.count().await?;
        self.wire.done();
        Ok(deleted > 0)
    }

    /// The names of all plain keys, unordered.
    pub async fn list_keys(&mut self) -> Result<Vec<Bytes>, Error> {
        self.wire.send(&Request::ListKeys, self.call).await?;
        let count = self.wire.count().await?;
        let keys = self.wire.strings(count).await?;
        self.wire.done();
        Ok(keys)
    }

    /// The number of items in a queue.
    pub async fn queue_len(&mut self, key: &[u8]) -> Result<u64, Error> {
        self.wire.send(&Request::QueueLen { key }, self.call).await?;
        let len = self.wire.count().await?;
        self.wire.done();
        Ok(len)
    }

    /// Takes the head of a queue, if there is one now.
    pub async fn try_queue_pop(&mut self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        self.wire.send(&Request::QueuePop { key }, self.call).await?;
        let item = if self.wire.count().await? > 0 { Some(self.wire.string().await?) } else { None };
        self.wire.done();
        Ok(item)
    }

    /// Waits for an item in a queue and takes it.
    pub async fn queue_pop(&mut self, key: &[u8], limit: Duration) -> Result<Bytes, Error> {
        let started = tokio::time::Instant::now();
        loop {
            self.wait(&[key], limit.saturating_sub(started.elapsed())).await?;
            if let Some(item) = self.try_queue_pop(key).await? {
                return Ok(item);
            }
            // Another client took the item, or a plain key has this name: such a key ends each wait at once.
            if started.elapsed() >= limit {
                return Err(Error::NotInTime { after: limit });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends a request without a reply.
    async fn tell(&mut self, request: &Request<'_>) -> Result<(), Error> {
        self.wire.send(request, self.call).await?;
        self.wire.done();
        Ok(())
    }

    async fn read(&mut self, key: &[u8]) -> Result<Bytes, Error> {
        self.wire.send(&Request::Get { key }, self.call).await?;
        let value = self.wire.string().await?;
        self.wire.done();
        Ok(value)
    }

    /// Reads the answer to a WAIT or BARRIER. Cancels the request if no answer comes in time.
    async fn await_release(&mut self, limit: Duration) -> Result<(), Error> {
        self.wire.allow(limit);
        match self.wire.code().await {
            Ok(false) => {
                self.wire.done();
                return Ok(());
            }
            Ok(true) => return Err(self.wire.garbage("a cancellation that nobody asked for".into())),
            Err(Error::NoAnswer { .. }) => {}
            Err(error) => return Err(error),
        }
        self.wire.allow(self.call);
        self.wire.put(&Request::CancelWait).await?;
        let cancelled = self.wire.code().await?;
        // If the release was already on its way, the answer to the cancellation follows it.
        if !cancelled && !self.wire.code().await? {
            return Err(self.wire.garbage("two releases of one wait".into()));
        }
        self.wire.done();
        if cancelled { Err(Error::NotInTime { after: limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
