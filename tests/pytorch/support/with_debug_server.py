"""A rank with torch's debug server. It stays until the file `end` is in the folder of its job."""

import sys
import time
from pathlib import Path

import torch.distributed as dist
from torch.distributed.debug import start_debug_server

start_debug_server()
dist.init_process_group("gloo")
dist.barrier()
end = Path(sys.argv[sys.argv.index("--out") + 1]) / "end"
while not end.exists():
    time.sleep(0.1)
