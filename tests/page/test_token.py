"""The page of a server that speaks TLS and wants a token: it asks for it, and shows the runs that the token is for."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from ssl import create_default_context

import pytest
from browser import Browser, Page


@dataclass
class LockedServer:
    url: str
    tokens: Path
    authority: Path

    def join(self, run_id: str) -> None:
        """A node of a run, which its operator sees as such."""
        body = json.dumps({"node": "n", "join_id": "1", "min_nodes": 1, "wait_seconds": 15}).encode()
        headers = {"Authorization": "Bearer boss", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/v1/runs/{run_id}/join", body, headers)
        with urllib.request.urlopen(request, timeout=20, context=create_default_context(cafile=str(self.authority))) as answer:
            assert answer.status == 200


@pytest.fixture
def locked(binary: Path, tmp_path: Path) -> Iterator[LockedServer]:
    key, cert, tokens, ports_file = (tmp_path / name for name in ("tls.key", "tls.crt", "tokens", "ports.json"))
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=rallypoint", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(made, check=True, capture_output=True)
    tokens.write_text("boss operator\nlook+/= viewer mine-*\n")
    command = [binary, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ports-file", ports_file, "--tls-cert", cert]
    command += ["--tls-key", key, "--token-file", tokens, "--require-token", "--test-settings", "reload-every=200ms"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        try:
            deadline = time.monotonic() + 20
            while not ports_file.exists():
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.01)
            yield LockedServer(f"https://127.0.0.1:{json.loads(ports_file.read_text())['admin']}", tokens, cert)
        finally:
            process.kill()


def give(page: Page, token: str) -> None:
    page.until("it asks for a token", lambda: page.shown("#door"))
    page.focus("#token")
    page.press(token, "\ue007")  # Enter


def test_the_page_asks_for_a_token_and_shows_its_runs(
    locked: LockedServer, browser: Browser, open_page: Callable[[str], Page]
) -> None:
    browser.cdp("Security.setIgnoreCertificateErrors", ignore=True)
    try:
        for run_id in ("mine-1", "theirs-1"):
            locked.join(run_id)
        page = open_page(locked.url)
        give(page, "wrong")
        page.until_says("#door-said", "does not have this token")
        give(page, "look+/=")
        page.until_says("#link", "live")
        page.until_says("#runs", "mine-1")
        assert "theirs" not in page.text("body") and not page.shown("#door")
        # A new run comes as an event, and one of others does not.
        for run_id in ("theirs-2", "mine-2"):
            locked.join(run_id)
        page.until_says("#runs", "mine-2")
        assert "theirs" not in page.text("body")
        # No script can read it, and it stands in no address.
        assert page.js("document.cookie") == "" and urllib.parse.urlsplit(page.js("location.href")).query == ""
        cookies = browser.driver.get_cookies()
        assert [(cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) for cookie in cookies] == [(True, True, "Strict")]
        # It outlives a reload of the page, but not the token.
        page = open_page(locked.url)
        page.until_says("#runs", "mine-1")
        locked.tokens.write_text("boss operator\n")
        page.until("it asks again", lambda: page.shown("#door"))
        assert "mine" not in page.text("body")
    finally:
        browser.driver.delete_all_cookies()
        browser.cdp("Security.setIgnoreCertificateErrors", ignore=False)
