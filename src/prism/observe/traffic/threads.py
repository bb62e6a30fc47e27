"""A pool of threads: jobs are independent, and compiled passes let go of the interpreter while they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_MOST_THREADS = 8  # The interpreter serves one at a time; more would only wait for it.


def do_each(task: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """What `task` makes of every item, in their order; several at once."""
    with ThreadPoolExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(task, items))


def do_beside(task: Callable[[], Answer]) -> Future[Answer]:
    """Begin a task that is done while others are."""
    pool = ThreadPoolExecutor(1)
    begun = pool.submit(task)
    pool.shutdown(wait=False)
    return begun
