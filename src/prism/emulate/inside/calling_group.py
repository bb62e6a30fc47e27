# mypy: disable-error-code="override,assignment"
"""How a call of the stand-in group runs: it is logged, paced, given its contents, and returns its work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from prism.emulate.inside import contents
from prism.emulate.inside.exchange import CaptureDone
from prism.emulate.inside.named_group import NamedGroup
from prism.emulate.inside.pacing import PacedCall
from prism.emulate.inside.peers import Peers
from prism.emulate.inside.recorder import Entry, find_source
from prism.emulate.inside.rehearsal import Call, find_fault, meet_fault
from prism.emulate.inside.session import Session, UnsupportedError
from prism.emulate.inside.streams import join_streams
from prism.emulate.inside.work import VirtualWork

_GRACE_S = 60.0
_ASK_EVERY = 64  # calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One communication as the program asked for it."""

    kind: str
    tensors: list[Tensor]
    bytes: int
    sync: bool
    apply: Callable[[], None] | None = None  # writes the contents that need no other rank
    meet: Callable[[], Callable[[], object] | None] | None = None  # gives own bytes; returns how to fetch the others'
    outputs: list[Tensor] | None = None
    peer: int = -1
    tag: int = 0
    sizes: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    values: str = ""


_COPYING = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Kinds whose output is another tensor than their input, so that even a lone rank has to copy."""
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


class CallingGroup(NamedGroup):
    """A group that runs requests; its subclass says what each kind of call requests."""

    def __init__(
        self, session: Session, position: int, ranks: Sequence[int], name: str, backend: str, timeout: timedelta
    ) -> None:
        super().__init__(position, len(ranks), name, backend, timeout)
        self._session = session
        self._ranks = ranks
        self._stream: Any = None
        self._peers = Peers(session, ranks, position, name)
        self._open: list[VirtualWork] | None = None

    # Batches.

    def _start_coalescing(self, device: torch.device) -> None:
        self._open = []
        self._session.open_batch = self._session.recorder.num_batches
        self._session.recorder.num_batches += 1

    def _end_coalescing(self, device: torch.device) -> Any:
        works, self._open = self._open or [], None
        self._session.open_batch = -1
        return _Batch.of(works)

    # How every one of them runs.

    def _run(self, kind: str, tensors: list[Tensor], size: int, opts: Any, **details: Any) -> VirtualWork:
        begin = self._session.clock.mark()
        # Options made in C++ say asynchronous; sends and receives always are.
        sync = opts is not None and not getattr(opts, "asyncOp", True)
        values = _describe_values(kind, tensors, opts)
        request = Request(kind=kind, tensors=tensors, bytes=size, sync=sync, values=values, **details)
        return self._perform(request, begin)

    def _perform(self, request: Request, begin: int) -> VirtualWork:
        session, on_gpu = self._session, any(t.is_cuda for t in request.tensors)
        if os.getpid() != session.pid:
            raise UnsupportedError(f"a forked process calls {request.kind} ({find_source()}); only the rank itself may")
        stream = session.clock.stream()
        source = find_source()
        lane = self._lane(request, stream, on_gpu)
        entry = Entry(
            request.kind,
            stream,
            begin,
            begin,
            op=session.recorder.num_ops,
            group=self._name,
            bytes=request.bytes,
            sizes=request.sizes,
            peer=request.peer,
            lane=lane,
            batch=session.open_batch,
            tag=request.tag,
            source=source,
            takes=request.takes,
            values=request.values,
            pickled=self._is_pickled(request),
        )
        session.recorder.num_ops += 1
        session.recorder.entries.append(entry)
        if session.recorder.num_ops == session.plan.most_calls:
            raise CaptureDone
        if session.exchange is not None and session.step == 0 and entry.op % _ASK_EVERY == _ASK_EVERY - 1:
            session.exchange.ask("still", entry.op)  # a rank without an optimizer ends when the others have
        self._calls += 1
        kept = request.outputs if request.outputs is not None else request.tensors
        # Only asynchronous ops keep their inputs alive; NCCL's group has done so since torch 2.8.
        settle = request.meet() if request.meet is not None and self.size() > 1 else None
        work = VirtualWork(
            session, entry, list(kept) if request.sync else request.tensors, sync=request.sync, settle=settle
        )
        work.others = self._peers.announce(request.kind, request.peer, request.tag)
        self._meet_faults(request, entry)
        if not on_gpu and self._backend_name == "gloo":
            session.note_scratch(count_scratch(request, is_root=request.peer == self._position))
        with torch.no_grad(), self._on_stream(on_gpu and not request.sync):
            self._pace(request, entry)
            if request.apply is not None and (self.size() > 1 or request.kind in _COPYING):
                request.apply()
            if request.kind == "recv" and request.apply is None and settle is None:
                contents.fill_pattern(request.tensors[0])
            if on_gpu:
                work.note_end()
        entry.end = session.clock.mark()
        if self._open is not None:
            self._open.append(work)
        return work

    def _is_pickled(self, request: Request) -> bool:
        """Objects travel as bytes; those of ranks that do not run are copies, which may be longer or shorter."""
        plan = self._session.plan
        return len(plan.live_ranks) < plan.world_size and any(t.dtype == torch.uint8 for t in request.tensors)

    def _lane(self, request: Request, stream: int, on_gpu: bool) -> int:
        """The stream an op runs on: the caller's where it is synchronous, else the group's own."""
        if request.sync:
            return stream
        if not on_gpu:
            return -1  # the stitcher decides how a CPU's cores are shared
        return self._session.clock.stream(self._own_stream())

    def _own_stream(self) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return self._stream

    def _on_stream(self, own: bool) -> Any:
        if not own:
            return nullcontext()
        join_streams(waiter=self._own_stream(), on=torch.cuda.current_stream())
        return torch.cuda.stream(self._own_stream())

    def _pace(self, request: Request, entry: Entry) -> None:
        if self._session.pacer is not None:
            self._session.pacer.issue(self._paced(request), entry.op)

    def _paced(self, request: Request) -> PacedCall:
        return PacedCall(request.kind, request.bytes, self._name, request.peer)

    def _meet_faults(self, request: Request, entry: Entry) -> None:
        session = self._session
        if not session.plan.faults:
            return
        fault = find_fault(session.plan.faults, self._ranks, session.step)
        if fault is None:
            return
        call = Call(
            request.kind,
            self._calls - 1,
            self._backend_name,
            request.bytes,
            self._timeout.total_seconds(),
            entry.source,
        )
        meet_fault(fault, call)
        if session.pacer is not None:
            # NCCL's host call returned; its kernel never ends, and the watchdog is faster than this hold.
            session.pacer.hold(self._paced(request), entry.op, round((call.timeout_s + _GRACE_S) * 1e9))


def _describe_values(kind: str, tensors: list[Tensor], opts: Any) -> str:
    """What members must agree on beside the size: the type of the elements, and how they are reduced."""
    if kind in _REDUCING:
        return f"{tensors[0].dtype} {find_operator(opts).op.name}".removeprefix("torch.")
    return str(tensors[0].dtype).removeprefix("torch.") if tensors and tensors[0].element_size() > 1 else ""


def find_operator(opts: Any) -> Any:
    """The reduction asked for; C++ callers may leave the options out, which means a sum."""
    return opts.reduceOp if opts is not None else dist.ReduceOp(dist.ReduceOp.SUM)


def count_scratch(request: Request, *, is_root: bool) -> int:
    """Bytes that gloo takes for a call of its own (torch 2.13, `proving/benchmarks/emulate_memory.py --device cpu`).

    It gathers into one flat buffer, which it copies to the outputs, scatters from one, and reduces a copy of the input.
    """
    if request.kind == "all_gather" or (request.kind in ("gather", "scatter") and is_root):
        return request.bytes
    if request.kind == "reduce_scatter":
        return max(map(contents.size_of, request.tensors), default=0)
    return 0


class _Batch(dist.Work):
    """Several works that were issued as one call."""

    def __init__(self, works: list[VirtualWork]) -> None:
        super().__init__()
        self._works = works

    @classmethod
    def of(cls, works: list[VirtualWork]) -> Any:
        """None for an empty batch, as c10d expects."""
        return cls(works) if works else None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them."""
        for work in self._works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        """Emulated ops are never pending on the host."""
        return True
