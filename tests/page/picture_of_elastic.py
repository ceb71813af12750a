"""docs/img/elastic.svg: what `scripts/demo --elastic` prints, as it came. Run by `scripts/pictures --elastic`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from documents import REPOSITORY
from pictures import FOLDER, draw_demo

COMMAND = "scripts/demo --elastic"
TITLE = "A rank is killed, the others go on in their processes, and a new one joins them"


def main() -> None:
    started, lines = time.monotonic(), [(0.0, f"$ {COMMAND}")]
    environment = os.environ | {"RALLYPOINT_BIN": sys.argv[1]}
    with subprocess.Popen(COMMAND.split(), stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY) as running:
        for line in running.stdout or ():
            lines.append((time.monotonic() - started, line.rstrip()))
    assert running.returncode == 0, "the demo failed"
    picture = FOLDER / "elastic.svg"
    draw_demo(lines, picture)
    head, _, rest = picture.read_text().partition("<title>")
    picture.write_text(f"{head}<title>{TITLE}{rest[rest.index('</title>'):]}")


if __name__ == "__main__":
    main()
