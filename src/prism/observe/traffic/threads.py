"""A thread pool: jobs are independent, and compiled passes release the interpreter lock while they run."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
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


def try_each(
    task: Callable[[Item], Answer], items: Sequence[Item], name: Callable[[Item], str], notes: list[str]
) -> list[tuple[Item, Answer]]:
    """What `task` makes of the items that it works for; a note names every other one and why.

    Tenants do not know of each other, so an error in the study of one job must not lose the others.
    """

    def attempt(item: Item) -> tuple[Item, Answer] | str:
        try:
            return item, task(item)
        except Exception as error:
            return f"{name(item)}: {describe_error(error)}"

    done = do_each(attempt, items)
    notes += [one for one in done if isinstance(one, str)]
    return [one for one in done if not isinstance(one, str)]


def describe_error(error: Exception) -> str:
    """An error of our own in one line: what, and where in the code."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"could not be studied further ({what}, {Path(place.filename).name} line {place.lineno}); please report it"
