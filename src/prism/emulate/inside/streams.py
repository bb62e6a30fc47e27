"""CUDA events and streams: Prism's own use of them, and hooks that log the program's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from prism.emulate.inside.session import Session


def record_event(event: Any, stream: Any) -> None:
    """Record without the hooks below."""
    torch._C._CudaEventBase.record(event, stream)


def wait_event(event: Any, stream: Any) -> None:
    """Make a stream wait without the hooks below."""
    torch._C._CudaEventBase.wait(event, stream)


def join_streams(*, waiter: Any, on: Any) -> None:
    """Make one stream wait for all that another was given so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    record_event(event, on)
    wait_event(event, waiter)


def log_events(session: Session) -> None:
    """Log every record and wait that the program makes, so that its own streams keep their order in the graph."""
    from prism.emulate.inside.recorder import Entry

    plain_record, plain_wait = torch.cuda.Event.record, torch.cuda.Event.wait
    numbers = iter(range(1 << 62))

    def note(what: str, number: int, stream: Any, begin: int) -> None:
        end = session.clock.mark(stream)
        session.recorder.entries.append(Entry(what, session.clock.stream(stream), begin, end, op=number))

    def record(self: Any, stream: Any = None) -> None:
        plain_record(self, stream)
        self.prism_number = next(numbers)
        note("record", self.prism_number, stream, session.clock.mark(stream))

    def wait(self: Any, stream: Any = None) -> None:
        begin = session.clock.mark(stream)  # what the stream waits for is no work of its own
        plain_wait(self, stream)
        if hasattr(self, "prism_number"):
            note("hold", self.prism_number, stream, begin)

    torch.cuda.Event.record = record  # type: ignore[method-assign]
    torch.cuda.Event.wait = wait  # type: ignore[method-assign]
