"""The pictures of README.md, docs/ and python/README.md. Run by scripts/pictures.

`demo.svg` is what `rallypoint demo` prints, line by line as it came. The others are the page at the runs of
tests/data/insight, each with a mark: what it was made from. tests/page/test_pictures.py reads the marks.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

from admin import Admin, page_of
from browser import Browser
from documents import REPOSITORY, example

FOLDER = REPOSITORY / "docs" / "img"
LAYOUT = [REPOSITORY / "crates" / "server" / "src" / "admin" / "page" / name for name in ("index.html", "style.css")]
RUNS = ("run_4_nodes_one_missing", "run_64_nodes", "run_static_rank_missing")
PAGES = {"page-4-nodes.png": "train-llm", "page-64-nodes.png": "big"}
WIDE, HIGH = 1280, 1000
"""The part of the page that is shown. What is below is left out."""

COLOURS = {"31": "#e06c75", "32": "#98c379", "33": "#e5c07b", "36": "#56b6c2", "1": "#ffffff", "2": "#7f848e"}
LINE, SIZE = 21, 14
PAUSE = 6.0  # at the end, before the animation starts again


# ----- the page


def mark() -> bytes:
    """What the pictures of the page are made from: its layout, and this file."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in [*LAYOUT, Path(__file__)])).hexdigest().encode()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_mark(png: bytes) -> bytes:
    """The same picture with the mark behind its head."""
    head = 8 + 25
    return png[:head] + chunk(b"tEXt", b"rallypoint\0" + mark()) + png[head:]


def facts(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and mark of a picture."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", "this is no PNG"
    width, height = struct.unpack(">II", png[16:24])
    found = re.search(rb"tEXtrallypoint\0([0-9a-f]{64})", png)
    return width, height, found[1] if found else b""


def draw_pages(url: str, folder: Path) -> None:
    admin = Admin(*page_of(url))
    assert LAYOUT[1].read_bytes().strip() in admin.page, "the program is older than its sources: build it first"
    browser = Browser()
    try:
        admin.start()
        for name in RUNS:
            document = example(name)
            admin.runs[document["run_id"]] = document
        for name, run_id in PAGES.items():
            browser.reset()
            browser.size(WIDE, 4 * HIGH)  # so high that there is no scroll bar
            page = browser.open(f"{admin.url}/#run={run_id}")
            page.until_says("#nodes-legend", "joined")
            page.screenshot(folder / name, HIGH)
            (folder / name).write_bytes(with_mark((folder / name).read_bytes()))
    finally:
        browser.quit()
        admin.stop()


# ----- the demo


def demo(program: Path) -> list[tuple[float, str]]:
    """The lines of `rallypoint demo`, with their colours, and when each came."""
    started, lines = time.monotonic(), [(0.0, "$ rallypoint demo")]
    environment = {"PATH": os.environ["PATH"], "CLICOLOR_FORCE": "1"}
    with subprocess.Popen([program, "demo"], stdout=subprocess.PIPE, text=True, env=environment) as running:
        for line in running.stdout or ():
            lines.append((time.monotonic() - started, line.rstrip()))
    assert running.returncode == 0, "the demo failed"
    return lines


def words(lines: list[str]) -> list[str]:
    """Lines without what differs from run to run: numbers, the length of the bar, colours."""
    bare = (re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines)
    return [re.sub(r"\d+(\.\d+)?", "N", line) for line in bare]


def words_of(svg: str) -> list[str]:
    """The lines that such a picture shows."""
    rows = re.findall(r"<text [^>]*>(.*?)</text>", svg)
    return words([html.unescape(re.sub(r"<[^>]*>", "", row)) for row in rows])


def spans(line: str) -> str:
    """A line with its colours."""
    out, colour = [], ""
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        code = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if code:
            colour = next((COLOURS[one] for one in reversed(code[1].split(";")) if one in COLOURS), "")
        elif part:
            fill = f' fill="{colour}"' if colour else ""
            out.append(f"<tspan{fill}>{html.escape(part)}</tspan>")
    return "".join(out)


def draw_demo(lines: list[tuple[float, str]], path: Path) -> None:
    longest = max(len(line) for line in words([line for _, line in lines]))
    whole, width, height = lines[-1][0] + PAUSE, round(longest * SIZE * 0.61) + 36, LINE * (len(lines) + 2)
    rows, styles = [], []
    for at, (when, line) in enumerate(lines):
        shown = 100 * (when + 0.3) / whole
        styles.append(f"@keyframes l{at}{{0%,{shown:.2f}%{{opacity:0}}{shown + 0.01:.2f}%,100%{{opacity:1}}}}#l{at}{{animation:l{at} {whole:.1f}s infinite}}")
        rows.append(f'<text id="l{at}" x="18" y="{LINE * (at + 2)}" xml:space="preserve">{spans(line)}</text>')
    style = f"text{{font:{SIZE}px ui-monospace,Menlo,Consolas,monospace;fill:#dcdfe4}}" + "".join(styles)
    still = "@media (prefers-reduced-motion:reduce){text{animation:none!important}}"
    box = f'<rect width="{width}" height="{height}" rx="8" fill="#21252b"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    title = "<title>rallypoint demo: three of four pods are there, the fourth is named, then all meet</title>"
    path.write_text("\n".join([head, title, f"<style>{style}{still}</style>", box, *rows, "</svg>"]) + "\n")


def main() -> None:
    program = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    draw_demo(demo(program), folder / "demo.svg")
    serve = [program, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ports-file", folder / "ports.json"]
    with subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while not (folder / "ports.json").exists():
                assert server.poll() is None, "the server does not start"
                time.sleep(0.05)
            found = re.search(r'"admin": *(\d+)', (folder / "ports.json").read_text())
            assert found, "no admin port"
            draw_pages(f"http://127.0.0.1:{found[1]}", folder)
        finally:
            server.kill()
            (folder / "ports.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
