"""The image: built here by buildah, looked at, and its file system run as a container would be."""

from __future__ import annotations

import json
import os
import re
import shutil
import socketserver
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import PACKAGE, VERSION, binary, eventually, running
from render import DEPLOY, call

# Of the profile that builds fast; the released one is a fifth smaller. What is pulled is 40 % of it.
LIMIT = 24_000_000


def build(folder: Path) -> Path:
    """The image as an archive; nothing stays in the machine's own image storage."""
    storage = f"--storage-driver vfs --root {folder}/storage --runroot {folder}/run"
    archive = folder / "image.tar"
    command: list[str | Path] = [DEPLOY / "image" / "build", "--binary", binary(), "--output", archive]
    done = subprocess.run(command, env=os.environ | {"BUILDAH_ARGS": storage}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return archive


class Image:
    """The parts of an image's archive."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive = archive
        with tarfile.open(archive) as image:
            image.extractall(folder / "archive", filter="tar")
        self.manifest = json.loads((folder / "archive" / "manifest.json").read_text())[0]
        self.config = json.loads((folder / "archive" / self.manifest["Config"]).read_text())
        self.root = folder / "root"
        for layer in self.manifest["Layers"]:
            with tarfile.open(folder / "archive" / layer) as files:
                files.extractall(self.root, filter="tar")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    yield Image(build(folder), folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_it_is_small_and_holds_one_file(image: Image) -> None:
    assert image.archive.stat().st_size < LIMIT
    assert [path.relative_to(image.root).as_posix() for path in image.root.rglob("*") if path.is_file()] == ["usr/local/bin/rallypoint"]
    assert {tag.rpartition("/")[2] for tag in image.manifest["RepoTags"]} == {f"rallypoint:{VERSION}"}


def test_it_runs_the_server_and_not_as_root(image: Image) -> None:
    config = image.config["config"]
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == ("65532:65532", ["rallypoint"], ["serve"])
    assert config["Healthcheck"]["Test"] == ["CMD", "rallypoint", "health"]
    assert set(config["ExposedPorts"]) == {"29500/tcp", "29501/tcp"}
    assert config["Labels"]["org.opencontainers.image.version"] == VERSION
    assert config["Labels"]["org.opencontainers.image.source"] == PACKAGE["repository"]
    assert re.fullmatch("[0-9a-f]{40}|unknown", config["Labels"]["org.opencontainers.image.revision"])


def test_the_program_is_found_by_its_name(image: Image) -> None:
    """A container runtime looks a command up in the PATH of the image."""
    (path,) = [value for name, _, value in (entry.partition("=") for entry in image.config["config"]["Env"]) if name == "PATH"]
    found = [folder for folder in path.split(":") if os.access(image.root / folder.lstrip("/") / "rallypoint", os.X_OK)]
    assert found == ["/usr/local/bin"]


def test_the_same_program_gives_the_same_image(image: Image, tmp_path: Path) -> None:
    # A layer is named by its digest. The archive as a whole also holds the name of the builder's work container.
    assert Image(build(tmp_path), tmp_path).manifest["Layers"] == image.manifest["Layers"]


def test_a_dynamic_program_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "fake"
    fake.write_text(f"#!/bin/sh\n# /lib64/ld-linux-x86-64.so.2\necho rallypoint {VERSION}\n")
    fake.chmod(0o755)
    with pytest.raises(AssertionError, match="is not static"):
        call(DEPLOY / "image" / "build", "--binary", fake)


def healthy(container: list[str | Path]) -> bool:
    return subprocess.run([*container, "health"], capture_output=True).returncode == 0


class Names(socketserver.BaseRequestHandler):
    """A name server that knows train-0.train.ml.svc.cluster.local, and nothing else."""

    KNOWN = b"\x07train-0\x05train\x02ml\x03svc\x07cluster\x05local\x00"

    def handle(self) -> None:
        query, reply_to = self.request
        end = query.index(b"\x00", 12) + 1
        question, kind = query[12 : end + 4], struct.unpack(">H", query[end : end + 2])[0]
        known = query[12:end].lower() == self.KNOWN
        answer = known and kind == 1
        flags = 0x8180 if known else 0x8183
        header = query[:2] + struct.pack(">HHHHH", flags, 1, int(answer), 0, 0)
        record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + bytes([127, 0, 0, 1]) if answer else b""
        reply_to.sendto(header + question + record, self.client_address)


def test_a_container_serves_is_healthy_and_resolves_names(image: Image, tmp_path: Path) -> None:
    """With the files that Kubernetes mounts over an empty file system, in a network of its own, as user 65532."""
    etc = image.root / "etc"
    etc.mkdir()
    search = "search ml.svc.cluster.local svc.cluster.local"
    etc.joinpath("resolv.conf").write_text(f"nameserver 127.0.0.1\n{search}\noptions ndots:5\n")
    etc.joinpath("hosts").write_text("127.0.0.1 localhost\n127.0.0.1 train-1.train.ml.svc.cluster.local train-1\n")
    name = f"rallypoint-image-{os.getpid()}"
    call("ip", "netns", "add", name)
    try:
        call("ip", "-n", name, "link", "set", "lo", "up")
        entered = ["ip", "netns", "exec", name]
        container: list[str | Path] = [*entered, "chroot", "--userspec=65532:65532", image.root, "/usr/local/bin/rallypoint"]
        names = subprocess.Popen([*entered, sys.executable, str(Path(__file__))])
        try:
            with running([*container, "serve"], tmp_path / "serve.log") as process:
                eventually(lambda: healthy(container), "a healthy server")
                status = Path(f"/proc/{process.pid}/status").read_text()
                assert "Uid:\t65532\t65532\t65532\t65532" in status
                for host in ("train-0.train", "train-1", "localhost"):
                    call(*container, "wait", f"{host}:29500", "--timeout", "1m")
                process.terminate()
                assert process.wait(60) == 0, "SIGTERM ends it in order"
            assert not healthy(container)
        finally:
            names.kill()
            names.wait()
    finally:
        call("ip", "netns", "del", name)


if __name__ == "__main__":  # the name server, in the network that this process was started in
    socketserver.UDPServer(("127.0.0.1", 53), Names).serve_forever()
