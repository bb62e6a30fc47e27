"""Run a script on one core, the one of its LOCAL_RANK: what torchrun starts where every rank is to have its own."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    cores = sorted(os.sched_getaffinity(0))
    apart = max(len(cores) // int(os.environ["LOCAL_WORLD_SIZE"]), 1)  # neighbours are often one core's threads
    os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) * apart % len(cores)]})
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
