"""CUDA events and streams: Prism's own use of them, past the hooks of `event_log`."""

from __future__ import annotations

from typing import Any

import torch


def record_event(event: Any, stream: Any) -> None:
    """Record without the hooks of `event_log`."""
    torch._C._CudaEventBase.record(event, stream)


def wait_event(event: Any, stream: Any) -> None:
    """Make a stream wait without the hooks of `event_log`."""
    torch._C._CudaEventBase.wait(event, stream)


def join_streams(*, waiter: Any, on: Any) -> None:
    """Make one stream wait for all that another was given so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    record_event(event, on)
    wait_event(event, waiter)
