"""Hooks that log the CUDA events that a program records and waits for."""

from __future__ import annotations

from typing import Any

import torch

from prism.emulate.inside.recorder import Entry
from prism.emulate.inside.session import Session


def log_events(session: Session) -> None:
    """Log every record and wait that the program makes, so that its own streams keep their order in the graph."""
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
