"""Folders that all workers of a run of the suite share, since they are dear to make and no test changes them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """The folder, made by the worker that asks first while the others wait; each process alone where none are."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return make(factory.mktemp(name))
    folder = factory.getbasetemp().parent / name  # of this run, above the folders of its workers
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder.with_suffix(".made")
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # a worker that died may have left a part of it
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
