"""The handle of one emulated communication: what `wait` and futures do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from prism.emulate.inside.exchange import CaptureDone, ExchangeError
from prism.emulate.inside.pacing import Pacer
from prism.emulate.inside.recorder import Entry
from prism.emulate.inside.session import Session
from prism.emulate.inside.streams import record_event, wait_event


class VirtualWork(dist.Work):
    """Keeps the tensors of an asynchronous op until it is waited for, as NCCL's group does."""

    def __init__(
        self, session: Session, entry: Entry, tensors: list[Tensor], *, sync: bool, settle: Callable[[], object] | None
    ) -> None:
        super().__init__()
        self._session = session
        self._entry = entry
        self._outputs = tensors
        self._sync = sync
        self._settle = settle  # fetches real bytes; put off until the program looks
        self._event: Any = None
        self._stream: Any = None
        self._future: Any = None
        self._waited = False
        self.source = -1
        self.others: Callable[[], None] | None = None  # waits for the other live members

    def note_end(self) -> None:
        """CUDA: the op's end on the stream that is current."""
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream()
        record_event(self._event, self._stream)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream, or on CPU the caller, wait for the op."""
        session = self._session
        begin = session.clock.mark()
        try:
            self._fetch()
        except ExchangeError:
            if not self._sync:
                self._note_wait(begin, begin)  # a deadlock is found by the waits in the logs
            raise
        self._meet()
        if self._event is not None:
            wait_event(self._event, torch.cuda.current_stream())
        if session.pacer is not None:
            session.pacer.finish(self._entry.op)
        self._outputs = []
        end = session.clock.mark()
        if self._sync:
            self._entry.end = end
        elif not self._waited:
            self._note_wait(begin, end)
        self._waited = True
        return True

    def get_future(self) -> Any:
        """A future for C++ callers such as DDP's reducer, which wait for it at the end of the backward pass."""
        if self._future is not None:
            return self._future
        outputs = list(self._outputs)
        fetches = self._settle is not None
        self._fetch()
        if fetches and self._session.recorder.entries[-1] is self._entry:
            # To add up what hundreds of ranks hold is no work of the program.
            self._entry.end = self._session.clock.mark()
        devices: list[Any] | None = [outputs[0].device] if outputs and outputs[0].is_cuda else None
        self._future = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        pacer = self._session.pacer
        if pacer is not None and pacer.blocks_host:
            threading.Thread(target=self._complete_later, args=(outputs, pacer), daemon=True).start()
        elif self._event is not None:
            # A CUDA future takes the events of the streams that are current when it is completed.
            with torch.cuda.stream(self._stream):
                self._future.set_result(outputs)
        else:
            self._future.set_result(outputs)
        self._note_wait_at_backward_end()
        return self._future

    def is_completed(self) -> bool:
        """Emulated ops end on their stream; the host never sees them pending."""
        return True

    def is_success(self) -> bool:
        """A fault is raised, not stored."""
        return True

    def exception(self) -> None:
        """A fault is raised, not stored."""

    def result(self) -> list[Tensor]:
        """The outputs."""
        return self._outputs

    def synchronize(self) -> None:
        """The same as wait."""
        self.wait()

    def source_rank(self) -> int:
        """The sender of a receive."""
        return self.source

    _source_rank = source_rank

    def _fetch(self) -> None:
        """Get the real bytes, once."""
        settle, self._settle = self._settle, None
        if settle is None:
            return
        try:
            with torch.no_grad():  # real backends also write to parameters
                settle()
        except CaptureDone:
            # The others were stopped before they reached this call, so it is in no iteration.
            self._session.recorder.drop(self._entry)
            raise

    def _meet(self) -> None:
        others, self.others = self.others, None
        if others is not None:
            others()

    def _complete_later(self, outputs: list[Tensor], pacer: Pacer) -> None:
        pacer.finish(self._entry.op)
        self._future.set_result(outputs)

    def _note_wait(self, begin: int, end: int) -> None:
        entry = self._entry
        stream = self._session.clock.stream()
        self._session.recorder.entries.append(Entry("wait", stream, begin, end, op=entry.op, source=entry.source))

    def _note_wait_at_backward_end(self) -> None:
        if self._sync or self._waited:
            return
        self._waited = True
        if torch._C._current_graph_task_id() == -1:
            begin = self._session.clock.mark()
            self._meet()
            self._note_wait(begin, self._session.clock.mark())
            return
        torch.autograd.Variable._execution_engine.queue_callback(self._wait_in_callback)

    def _wait_in_callback(self) -> None:
        begin = self._session.clock.mark()
        self._meet()
        if self._session.pacer is not None:
            self._session.pacer.finish(self._entry.op)
        self._note_wait(begin, self._session.clock.mark())
