"""The ways to save that `proving/benchmarks/checkpoint.py` compares, behind one small interface."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from prism.recover import Retention
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health

SYNCHRONOUS = ("torch.save", "DCP sync")
METHODS = (*SYNCHRONOUS, "DCP async (thread)", "DCP async (best)", "Prism", "Prism (overlap)")


class Saver:
    """A way to save: `save` returns when the call does, `settle` when the state may change, `finish` when written."""

    def __init__(self, state: dict[str, Any], folder: Path) -> None:
        self.state = state
        self.folder = folder

    def save(self, step: int) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until the state may change."""

    def writing(self) -> bool:
        """Whether a write goes on in the background."""
        return False

    def finish(self) -> None:
        """Wait until everything is written."""

    def close(self) -> None:
        """Give memory back that would outlive the process."""


class TorchSave(Saver):
    def save(self, step: int) -> None:
        with (self.folder / "state.pt").open("wb") as handle:
            torch.save(self.state, handle)
            handle.flush()
            os.fsync(handle.fileno())


class DcpSync(Saver):
    def save(self, step: int) -> None:
        dcp.save(self.state, storage_writer=dcp.FileSystemWriter(self.folder / f"dcp-{step}"))


class DcpAsync(Saver):
    """`best`: a process that writes from shared memory, and on a GPU pinned memory and staging on a side stream."""

    def __init__(self, state: dict[str, Any], folder: Path, device: str, *, best: bool) -> None:
        super().__init__(state, folder)
        gpu = device == "cuda"
        self.kind = AsyncCheckpointerType.PROCESS if best else AsyncCheckpointerType.THREAD
        self.stager = DefaultStager(StagingOptions(gpu, True, True, gpu)) if best else None
        self.response: Any = None
        if self.stager is not None:
            # torch 2.11 empties its stager after every save, so that the second fails; 2.13 keeps it, as wanted here.
            self.stager._state_dict_stager.close = lambda: None  # type: ignore[method-assign]

    def save(self, step: int) -> None:
        self.response = dcp.async_save(
            self.state,
            storage_writer=dcp.FileSystemWriter(self.folder / f"dcp-{step}"),
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )

    def settle(self) -> None:
        if self.stager is not None and self.response is not None:
            self.response.staging_completion.result()

    def _upload(self) -> Any:
        return getattr(self.response, "upload_completion", self.response)

    def writing(self) -> bool:
        return self.response is not None and not self._upload().done()

    def finish(self) -> None:
        if self.response is not None:
            self._upload().result()


class Prism(Saver):
    def __init__(self, state: dict[str, Any], folder: Path, memory: Path, *, overlap: bool) -> None:
        super().__init__(state, folder)
        size = sum(t.numel() * t.element_size() for t in state["model"].values())
        self.config = CheckpointConfig(
            folder=folder / "prism",
            interval_steps=1,
            memory_dir=memory,
            memory_budget_bytes=int(size * 1.1) + (1 << 20),
            overlap=overlap,
            watch_signals=False,
            retention=Retention(keep_last=1),
        )
        self.checkpointer = Checkpointer(self.config)

    def save(self, step: int) -> None:
        self.checkpointer.save(step, self.state, Health(loss=0.0))

    def settle(self) -> None:
        self.checkpointer.wait_staged()

    def writing(self) -> bool:
        return self.checkpointer.writing

    def finish(self) -> None:
        self.checkpointer.wait_written()
        if self.checkpointer.last_error:
            raise RuntimeError(self.checkpointer.last_error)

    def restore_times(self) -> tuple[float, float]:
        """From memory, then from storage with every checksum."""
        memory = self.checkpointer.restore(self.state)
        assert memory is not None and memory.source == "memory"
        for slot in self.checkpointer.memory.slots:
            slot.header_path.unlink(missing_ok=True)
        storage = self.checkpointer.restore(self.state)
        assert storage is not None and storage.source == "storage"
        return memory.seconds, storage.seconds

    def close(self) -> None:
        self.checkpointer.memory.remove()


def make_saver(method: str, state: dict[str, Any], folder: Path, device: str, memory: Path) -> Saver:
    """The saver of that name."""
    makers: dict[str, Callable[[], Saver]] = {
        "torch.save": lambda: TorchSave(state, folder),
        "DCP sync": lambda: DcpSync(state, folder),
        "DCP async (thread)": lambda: DcpAsync(state, folder, device, best=False),
        "DCP async (best)": lambda: DcpAsync(state, folder, device, best=True),
        "Prism": lambda: Prism(state, folder, memory, overlap=False),
        "Prism (overlap)": lambda: Prism(state, folder, memory, overlap=True),
    }
    return makers[method]()
