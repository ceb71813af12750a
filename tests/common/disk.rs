//! A disk that a test can fill.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const CHUNK: usize = 64 * 1024;

/// A separate file system over a folder. Only the programs that it starts see it. Needs `unshare` and
/// `nsenter`.
pub(crate) struct SmallDisk {
    /// The file system exists as long as this process.
    holder: Child,
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk of this `size`, in the form that `mount` takes.
    pub(crate) fn over(folder: &Path, size: &str) -> Self {
        let script = "mount -t tmpfs -o size=\"$1\" none \"$0\" && echo mounted && exec cat";
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
            .arg(folder)
            .arg(size)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is there");
        let mut said = String::new();
        BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut said).expect("text");
        assert_eq!(said, "mounted\n", "this test needs user namespaces");
        Self { holder, folder: folder.to_owned() }
    }

    /// The program `rallypoint`, with the disk mounted.
    pub(crate) fn rallypoint(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--mount", "--preserve-credentials", "--target"]);
        command.arg(self.holder.id().to_string()).arg(env!("CARGO_BIN_EXE_rallypoint"));
        command
    }

    /// The path of the folder on the disk.
    pub(crate) fn folder(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.folder.strip_prefix("/").expect("a whole path"))
    }

    /// Takes all free space.
    pub(crate) fn fill(&self) {
        let mut junk = File::create(self.junk()).expect("it can be written");
        loop {
            match junk.write(&vec![0; CHUNK]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Gives this many bytes back.
    pub(crate) fn free(&self, bytes: u64) {
        let junk = File::options().write(true).open(self.junk()).expect("it was filled");
        let len = junk.metadata().expect("a file").len();
        junk.set_len(len.saturating_sub(bytes)).expect("shorter");
    }

    fn junk(&self) -> PathBuf {
        self.folder().join("junk")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
