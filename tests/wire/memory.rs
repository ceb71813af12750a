//! A restarted server needs as much memory as before, and no more. All threads share one heap.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::common::{TestServer, free_ports};
use crate::links::{Client, metric, string};

/// A control group with this limit, if the tests may make one on this machine.
struct Group(PathBuf);

impl Group {
    fn make(bytes: usize) -> Option<Self> {
        let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        versions.into_iter().find_map(|(root, limit)| {
            let path = Path::new(root).join(format!("rallypoint-test-{}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            let group = Self(path);
            std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir(&self.0);
    }
}

/// Starts a server with a journal, in the group if there is one.
fn start(group: Option<&Group>, store: &str, journal: &Path, max_memory: usize) -> TestServer {
    let procs = group.map(|group| group.0.join("cgroup.procs"));
    let max_memory = max_memory.to_string();
    let args = ["--journal", journal.to_str().expect("a path"), "--max-memory", &max_memory];
    TestServer::start_in(procs.as_deref(), store, &args)
}

/// Writes until the store holds nine tenths of its limit.
fn fill(server: &TestServer, max_memory: usize, keys: u64, value: usize) -> u64 {
    let mut client = Client::connect(server.store);
    let mut count = 0;
    loop {
        let mut request = [&[11][..], &keys.to_le_bytes()].concat();
        for n in count..count + keys {
            request.extend(
                [string(format!("a-key-of-some-job/{n:010}").as_bytes()), string(&vec![b'v'; value])]
                    .concat(),
            );
        }
        count += keys;
        client.0.write_all(&request).expect("it reads");
        // The request is done when the next one is answered.
        client.add(b"n").expect("an answer");
        let held = metric(server, "rallypoint_memory_used_bytes") as usize;
        if held + held / count as usize * keys as usize > max_memory / 10 * 9 {
            return count;
        }
    }
}

/// Checks that the peak of a start, by the kernel's count, is at most 1.15 times the served memory. In a
/// control group, as in a container, the kernel would kill the server above its limit.
fn starts_in_the_memory_that_it_had(container: usize, keys: u64, value: usize) {
    let group = Group::make(container);
    let max_memory = container / 4 * 3;
    let journal = tempfile::tempdir().expect("a folder");
    let store = format!("127.0.0.1:{}", free_ports(1).start());
    let first = start(group.as_ref(), &store, journal.path(), max_memory);
    let count = fill(&first, max_memory, keys, value);
    let had = first.resident();
    drop(first);
    let again = start(group.as_ref(), &store, journal.path(), max_memory);
    let peak = again.memory("VmHWM");
    let mut client = Client::connect(again.store);
    assert_eq!(client.ask(&[7], 8).expect("a number"), (count + 1).to_le_bytes());
    let served = again.resident();
    let held = metric(&again, "rallypoint_memory_used_bytes");
    println!(
        "{count} keys, held {held}: peak {peak}, served {served}, had {had}, in a group: {}",
        group.is_some()
    );
    assert!(peak <= served.min(had) / 100 * 115, "peak {peak}, served {served}, had {had}");
    assert!(peak <= container, "peak {peak}, the container has {container}");
}

#[test]
fn large_values_are_never_there_twice_at_a_start() {
    starts_in_the_memory_that_it_had(256 << 20, 1, 8 << 20);
}

#[test]
fn many_keys_are_never_there_twice_at_a_start() {
    starts_in_the_memory_that_it_had(128 << 20, 4096, 10);
}

/// Heaps that threads have of their own. For each, glibc takes a block of 64 MiB at a multiple of that
/// size, and uses a part of it.
fn heaps_of_threads(server: &TestServer) -> usize {
    const HEAP: usize = 64 << 20;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("it runs");
    let maps = maps.lines().map(|line| {
        let mut words = line.split(' ');
        let (begin, end) = words.next().and_then(|range| range.split_once('-')).expect("a range");
        let [begin, end] = [begin, end].map(|at| usize::from_str_radix(at, 16).expect("an address"));
        (begin, end, words.next().expect("what it is for"))
    });
    let maps: Vec<_> = maps.collect();
    let is_heap = |pair: &&[(usize, usize, &str)]| {
        let ((begin, used, _), (rest, end, what_for)) = (pair[0], pair[1]);
        begin.is_multiple_of(HEAP) && used == rest && end == begin + HEAP && what_for == "---p"
    };
    maps.windows(2).filter(is_heap).count()
}

#[test]
fn what_one_thread_frees_another_can_use() {
    let server = TestServer::start(&["--test-settings", "threads=4"]);
    let mut clients: Vec<_> = (0..256).map(|_| Client::connect(server.store)).collect();
    for client in &mut clients {
        client.set(b"k", &vec![b'v'; 100_000]);
        client.add(b"n").expect("an answer");
    }
    assert_eq!(heaps_of_threads(&server), 0, "a thread has a heap of its own");
}
