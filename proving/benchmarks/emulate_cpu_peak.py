"""The most memory that a real CPU rank held, as torch's allocator reports it.

usage: emulate_cpu_peak.py OUTPUT SCRIPT ARGS...   (what torchrun starts; OUTPUT.RANK gets the bytes)

Threads of the backend are seen too, so that buffers of gloo count. A thread of gloo lets go of a collective's tensors
some time after the program was told that it is done; on a busy machine several gathered buffers are held so. Each wait
is followed by a pause, in which that thread gets to run.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

PAUSE_S = 0.05


def main() -> None:
    """Run the script under the profiler, then add up what was taken and given back, in the order of time."""
    output, script, *rest = sys.argv[1:]
    sys.argv = [script, *rest]
    sys.path.insert(0, str(Path(script).resolve().parent))
    _pause_after_waits()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        runpy.run_path(script, run_name="__main__")
    results = seen.profiler.kineto_results  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    peak = max(accumulate(size for _, size in changes), default=0)
    Path(f"{output}.{os.environ['RANK']}").write_text(str(peak))


def _pause_after_waits() -> None:
    plain = dist.Work.wait

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(work, *args, **kwargs)
        time.sleep(PAUSE_S)
        return result

    dist.Work.wait = wait  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
