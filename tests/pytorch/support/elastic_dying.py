"""A rank as elastic_rank.py, in a run of four in which one rank dies or stops in the next round, while the others connect to it.

    elastic_dying.py STEPS NODES UNTIL

The rank with ELASTIC_DIES dies `before` it has said its address or `after`, or `stops` then. The others come a second later, so that
this is certain.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import time
from pathlib import Path

from rallypoint import elastic

DIES = os.environ.get("ELASTIC_DIES")
connect = elastic._Group.connect
is_next = False


def watched(group: elastic._Group, number: int, handles: list[str], seconds: float) -> None:
    global is_next
    if is_next and len(handles) > 1:
        is_next = False
        if DIES == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        elif DIES:
            subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -{'STOP' if DIES == 'stops' else 'KILL'} {os.getpid()}"])
        else:
            time.sleep(1)
    connect(group, number, handles, seconds)
    is_next = is_next or len(handles) == 4


elastic._Group.connect = watched  # type: ignore[method-assign]
runpy.run_path(str(Path(__file__).with_name("elastic_rank.py")), run_name="__main__")
