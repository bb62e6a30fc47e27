"""Runs parts of the tour in parallel: as many as there are cores, each as soon as a core is free."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from prism.lab.tour.parts import Part, Stop, run_part


@contextmanager
def running(parts: Sequence[Part], folder: Path, over: threading.Event) -> Iterator[dict[str, Future[Stop]]]:
    """Start the parts; the caller waits for the results in the order in which it shows them.

    The caller's own work uses one core until `over` is set. Parts whose files others read start first, and those
    that read them last. Parts that have not started when the caller leaves never start.
    """
    pool = ThreadPoolExecutor(max_workers=_num_cores())
    begun: dict[str, Future[Stop]] = {}
    try:
        pool.submit(over.wait)
        read = {part.after for part in parts}
        for part in sorted(parts, key=lambda part: (part.name not in read, bool(part.after))):
            begun[part.name] = pool.submit(_run, part, folder, begun.get(part.after))
        yield begun
    finally:
        over.set()
        pool.shutdown(cancel_futures=True)


def _run(part: Part, folder: Path, before: Future[Stop] | None) -> Stop:
    if before is not None and not before.result().right:
        name = before.result().part.name
        return Stop(part=part, seconds=0.0, lines=[f"WRONG: not begun, since {name} went wrong"], right=False)
    return run_part(part, folder)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
