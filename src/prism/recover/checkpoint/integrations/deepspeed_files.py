"""DeepSpeed's own checkpoint files, written by a thread during training, and used only if verified.

Each rank's files are copied to host memory, written and forced to storage in the background, and then listed with their
checksums in a file of that rank. A checkpoint counts when the lists of all ranks are there and agree with the files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prism.machine.files import hash_file, write_durably
from prism.recover.checkpoint.threads import TorchThread

_TAG = re.compile(r"^step-(\d{9})$")
_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    state: Any
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    tag: str
    done: Callable[[str | None], None]  # with the error, if there was one


class BackgroundFiles:
    """What DeepSpeed calls a checkpoint engine: takes states, and writes them later."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder, self.rank, self.world_size = folder, rank, world_size
        self._todo: queue.SimpleQueue[_Write | _Commit | None] = queue.SimpleQueue()
        self._thread = TorchThread("prism-deepspeed-writer", self._work, stop=lambda: self._todo.put(None))
        self._thread.start()

    def save(self, state: Any, path: str) -> None:
        """Copy to the host; the file is written later."""
        self._todo.put(_Write(state=_to_host(state), path=Path(path)))

    def commit(self, tag: str, done: Callable[[str | None], None]) -> None:
        """List what was saved under a tag, once all of it is written."""
        self._todo.put(_Commit(tag=tag, done=done))

    def close(self) -> None:
        """Finish the writes."""
        self._todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        sums: dict[str, str] = {}
        error: str | None = None
        while (item := self._todo.get()) is not None:
            try:
                if isinstance(item, _Write):
                    if error is None:
                        _write(item)
                        sums[item.path.name] = hash_file(item.path)
                    continue
                if error is None:
                    document = {"world_size": self.world_size, "files": sums}
                    write_durably(self.folder / item.tag / _list_name(self.rank), json.dumps(document))
                    self._remove_old(item.tag)
            except Exception as trouble:  # a full disk, a value that cannot be written: training goes on
                error = f"{type(trouble).__name__}: {trouble}"
            if isinstance(item, _Commit):
                item.done(error)
                sums, error = {}, None

    def _remove_old(self, newest: str) -> None:
        """Keep the newest two complete ones; each rank removes its list first, so that no partial one is found."""
        if self.rank != 0:
            return
        whole = [tag for tag in find_tags(self.folder) if tag <= newest and has_all_lists(self.folder / tag)]
        for tag in sorted(whole)[:-_KEPT]:
            for path in (self.folder / tag).glob("prism-*.json"):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.folder / tag, ignore_errors=True)


def find_proven(folder: Path) -> str | None:
    """The newest checkpoint whose files are all complete and unchanged."""
    return next((tag for tag in reversed(find_tags(folder)) if find_damage(folder / tag) is None), None)


def find_tags(folder: Path) -> list[str]:
    """Checkpoints in a folder, whole or not, oldest first."""
    return sorted(path.name for path in folder.glob("step-*") if _TAG.match(path.name))


def step_of(tag: str) -> int:
    """The step of a checkpoint."""
    match = _TAG.match(tag)
    assert match is not None
    return int(match[1])


def has_all_lists(folder: Path) -> bool:
    """Whether every rank has listed its files."""
    lists = list(folder.glob("prism-*.json"))
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        return len(lists) == int(json.loads(lists[0].read_text())["world_size"])
    return False


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    if not has_all_lists(folder):
        return f"{folder}: not every rank had finished"
    for path in sorted(folder.glob("prism-*.json")):
        try:
            files = json.loads(path.read_text())["files"]
            wrong = [name for name, known in files.items() if hash_file(folder / Path(name).name) != known]
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            return f"{path}: {error}"
        if wrong:
            return f"{folder / wrong[0]}: its checksum differs from what was written"
    return None


def _list_name(rank: int) -> str:
    return f"prism-{rank:05d}.json"


def _write(item: _Write) -> None:
    buffer = io.BytesIO()
    torch.save(item.state, buffer)
    item.path.parent.mkdir(parents=True, exist_ok=True)
    with item.path.open("wb") as handle:
        handle.write(buffer.getbuffer())
        handle.flush()
        os.fsync(handle.fileno())


def _to_host(value: Any) -> Any:
    """A copy that later steps do not change; objects that are no containers of tensors are shared."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return type(value)((key, _to_host(one)) for key, one in value.items())
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_to_host(one) for one in value)
    return value
