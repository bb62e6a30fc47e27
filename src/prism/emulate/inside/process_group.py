# mypy: disable-error-code="override,assignment,func-returns-value"
"""The process group that stands in for nccl and gloo: this rank is real, its peers are not.

Collectives return at once with contents that keep the program's control flow right. torch renamed several methods
between 2.11 and 2.13 and calls some of them from C++ by name, so both sets of names are defined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from prism.emulate.inside import contents
from prism.emulate.inside.arguments import check_list, check_operator, check_splits, check_whole
from prism.emulate.inside.calling_group import CallingGroup, find_operator
from prism.emulate.inside.contents import is_control, size_of
from prism.emulate.inside.recorder import find_source
from prism.emulate.inside.session import UnsupportedError
from prism.emulate.inside.work import VirtualWork


class VirtualGroup(CallingGroup):
    """One group of the full world; costs the same however many members it has."""

    # Collectives.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> VirtualWork:
        """The own value as if every member held it; small tensors take the live members' real values."""
        reduce_op = find_operator(opts)
        factor = contents.reduce_factor(reduce_op, self.size())
        check_operator(tensors, reduce_op, self._backend_name)
        meets = self._are_read(tensors)
        meet = (lambda: _settle_all([self._peers.reduce(own, reduce_op) for own in tensors])) if meets else None
        apply = None if meets else lambda: [contents.scale(t, factor) for t in tensors]
        return self._run("all_reduce", tensors, sum(map(size_of, tensors)), opts, apply=apply, meet=meet)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[Tensor], opts: Any) -> VirtualWork:
        """Real bytes of the root where the program may read them; else what is in the tensor already."""
        root = opts.rootRank
        meet = (lambda: self._peers.broadcast(tensors[0], root)) if is_control(tensors[0]) else None
        return self._run("broadcast", tensors, sum(map(size_of, tensors)), opts, meet=meet, peer=root)

    def reduce(self, tensors: list[Tensor], opts: Any) -> VirtualWork:
        """The root gets what an all-reduce would give it."""
        own, reduce_op, is_root = tensors[0], opts.reduceOp, opts.rootRank == self._position
        check_operator(tensors, reduce_op, self._backend_name)
        factor = contents.reduce_factor(reduce_op, self.size()) if is_root else 1.0
        meets = is_control(own) and self._peers.are_several

        def meet() -> Callable[[], object] | None:
            # Only the root waits for the others.
            return self._peers.reduce(own, reduce_op) if is_root else self._peers.give_to_root(own)

        apply = None if meets else lambda: contents.scale(own, factor)
        return self._run(
            "reduce", tensors, size_of(own), opts, apply=apply, meet=meet if meets else None, peer=opts.rootRank
        )

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        """Every member's tensor: live ones their own, the others that of their twin."""
        own, slots = inputs[0], outputs[0]
        check_list("all_gather", slots, self.size())
        total = sum(map(size_of, slots))
        meets = is_control(own) and self._peers.are_several
        meet = (lambda: self._peers.gather(own, slots)) if meets else None
        apply = None if meets else lambda: _copy_to_all(slots, own)
        return self._run("all_gather", [*slots, own], total, opts, apply=apply, meet=meet, outputs=slots)

    def all_gather_single(self, output: Tensor, own: Tensor, opts: Any = None) -> VirtualWork:
        """The own shard in every place."""
        check_whole("all_gather", output, own, self.size())
        meets = is_control(own) and self._peers.are_several and output.is_contiguous()
        meet = (lambda: self._peers.gather(own, list(output.view(-1).chunk(self.size())))) if meets else None
        apply = None if meets else lambda: contents.gather_into(output, own, self._position)
        return self._run("all_gather", [output, own], size_of(output), opts, apply=apply, meet=meet, outputs=[output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        """Several gathers in one call."""
        if len(outputs) == 1:
            return self.all_gather_single(outputs[0], inputs[0], opts)
        apply = lambda: [contents.gather_into(o, i, self._position) for o, i in zip(outputs, inputs, strict=True)]  # noqa: E731
        return self._run(
            "all_gather", [*outputs, *inputs], sum(map(size_of, outputs)), opts, apply=apply, outputs=outputs
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        """Several gathers in one call; outputs come by member."""
        flat = [t for member in outputs for t in member]
        apply = lambda: [_copy_to_all([m[i] for m in outputs], own) for i, own in enumerate(inputs)]  # noqa: E731
        return self._run("all_gather", [*flat, *inputs], sum(map(size_of, flat)), opts, apply=apply, outputs=flat)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> VirtualWork:
        """The own chunk as if every member held it."""
        check_list("reduce_scatter", inputs[0], self.size())
        reduce_op, parts = find_operator(opts), inputs[0]
        check_operator(parts, reduce_op, self._backend_name)

        def apply() -> None:
            outputs[0].copy_(parts[self._position])
            contents.scale(outputs[0], contents.reduce_factor(reduce_op, self.size()))

        meets = self._are_read(parts) and not outputs[0].is_cuda
        meet = (lambda: self._peers.reduce_part(outputs[0], parts, reduce_op)) if meets else None
        return self._run(
            "reduce_scatter", [*outputs, *parts], sum(map(size_of, parts)), opts, apply=None if meets else apply,
            meet=meet, outputs=outputs,
        )  # fmt: skip

    def reduce_scatter_single(self, output: Tensor, full: Tensor, opts: Any = None) -> VirtualWork:
        """The own chunk as if every member held it."""
        return self.reduce_scatter_single_coalesced([output], [full], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> VirtualWork:
        """Several reduce-scatters in one call."""
        for output, full in zip(outputs, inputs, strict=True):
            check_whole("reduce_scatter", full, output, self.size())
        reduce_op = find_operator(opts)
        check_operator(inputs, reduce_op, self._backend_name)

        def apply() -> None:
            for output, full in zip(outputs, inputs, strict=True):
                contents.scatter_from(output, full, self._position)
                contents.scale(output, contents.reduce_factor(reduce_op, self.size()))

        def meet() -> Callable[[], object]:
            pairs = zip(outputs, inputs, strict=True)
            return _settle_all(
                [self._peers.reduce_part(o, _split(i.contiguous(), (), self.size()), reduce_op) for o, i in pairs]
            )

        meets = self._are_read(inputs) and not outputs[0].is_cuda
        return self._run(
            "reduce_scatter", [*outputs, *inputs], sum(map(size_of, inputs)), opts, apply=None if meets else apply,
            meet=meet if meets else None, outputs=outputs,
        )  # fmt: skip

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: Tensor, own: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> VirtualWork:
        """Whole numbers are exchanged where every member is known; else counts follow the routing asked for.

        Other payload is what was sent, as far as it fits.
        """
        for tensor, splits in ((output, output_splits), (own, input_splits)):
            check_splits(tensor, splits, self.size())
        sizes = tuple(contents.split_bytes(own, input_splits, self.size()))
        takes = tuple(contents.split_bytes(output, output_splits, self.size())) if output_splits else ()
        are_counts = not own.is_floating_point() and is_control(own) and not input_splits and not output_splits

        def apply() -> None:
            if are_counts:
                self._session.routed = True
                self._peers.route(output, own)
            else:
                contents.exchange_into(output, own)

        def meet() -> Callable[[], object]:
            outputs, parts = _split(output, output_splits, self.size()), _split(own, input_splits, self.size())
            return self._peers.exchange(outputs, parts, apply)

        are_even = not input_splits and not output_splits  # in every member, so that all decide alike
        meets = self._are_exchanged(own) or (are_even and self._are_read([own]) and not own.is_cuda)
        meets = meets and (self._session.plan.routing == "balanced" or not are_counts)
        uneven = sizes if input_splits and len(set(sizes)) > 1 else ()
        return self._run(
            "all_to_all", [output, own], sum(sizes), opts, apply=None if meets else apply, meet=meet if meets else None,
            outputs=[output], sizes=uneven, takes=() if self._session.routed else takes,
        )  # fmt: skip

    def _are_exchanged(self, own: Tensor) -> bool:
        """Whether an all-to-all exchanges real values: whole numbers may be indices that others look up.

        Members send tensors of different sizes, so the size must not decide. On a GPU the host must not wait.
        """
        return not (own.is_floating_point() or own.is_complex() or own.is_cuda) and self._peers.are_several

    def _are_read(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a program may read what these give, so that members' real values are needed; all decide alike."""
        small = is_control(tensors[0]) if len(tensors) == 1 else sum(map(size_of, tensors)) <= contents.CONTROL_BYTES
        return small and self._peers.are_several

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        """An all-to-all of lists."""
        check_list("all_to_all", inputs, self.size())
        check_list("all_to_all", outputs, self.size())
        sizes = tuple(map(size_of, inputs))
        apply = lambda: [contents.exchange_into(o, i) for o, i in zip(outputs, inputs, strict=True)]  # noqa: E731
        meet = (lambda: self._peers.exchange(outputs, inputs, apply)) if self._are_exchanged(inputs[0]) else None
        uneven = sizes if len(set(sizes)) > 1 else ()
        takes = () if self._session.routed else tuple(map(size_of, outputs))
        return self._run(
            "all_to_all", [*outputs, *inputs], sum(sizes), opts, apply=None if meet else apply, meet=meet,
            outputs=outputs, sizes=uneven, takes=takes,
        )  # fmt: skip

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> VirtualWork:
        """The root gets every member's tensor."""
        own, slots = inputs[0], outputs[0] if outputs else []
        if outputs:
            check_list("gather", slots, self.size())
        meets = is_control(own) and self._peers.are_several

        def meet() -> Callable[[], object] | None:
            # Only the root waits for the others.
            return self._peers.gather(own, slots) if slots else self._peers.give_to(own)

        apply = None if meets else lambda: _copy_to_all(slots, own)
        total = size_of(own) * self.size()
        return self._run(
            "gather", [own, *slots], total, opts, apply=apply, meet=meet if meets else None, outputs=slots,
            peer=opts.rootRank,
        )  # fmt: skip

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> VirtualWork:
        """The root's chunk for this member: real where small, a pattern where large and the root is not here."""
        output, chunks = outputs[0], inputs[0] if inputs else []
        if inputs:
            check_list("scatter", chunks, self.size())
        meets = is_control(output) and self._session.exchange is not None
        meet = (lambda: self._peers.scatter(output, chunks, opts.rootRank)) if meets else None

        def apply() -> None:
            if chunks:
                output.copy_(chunks[self._position])
            elif not meets:
                contents.fill_pattern(output)

        total = size_of(output) * self.size()
        return self._run(
            "scatter", [output, *chunks], total, opts, apply=apply, meet=meet, outputs=[output], peer=opts.rootRank
        )

    def barrier(self, opts: Any = None) -> VirtualWork:
        """Waits for the live members: what one of them wrote to a file before, the others read after."""
        meet = self._peers.meet if self._peers.are_several else None
        return self._run("barrier", [], 0, opts, meet=meet)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that blocks."""
        self.barrier().wait()

    # Messages.

    def send(self, tensors: list[Tensor], target: int, tag: int = 0) -> VirtualWork:
        """Real bytes where the receiver may read them."""
        self._check_peer(target)
        tag = self._tag(tag)
        meet = (lambda: self._peers.send(tensors[0], target, tag)) if self._passes(tensors[0]) else None
        return self._run("send", tensors, size_of(tensors[0]), None, peer=target, meet=meet, tag=tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> VirtualWork:
        """Real bytes where the program may read them; else a pattern of finite values."""
        self._check_peer(source)
        tensor, tag = tensors[0], self._tag(tag)
        meet = (lambda: self._peers.receive(tensor, source, tag)) if self._passes(tensor) else None
        apply = None if is_control(tensor) else lambda: contents.fill_pattern(tensor)
        work = self._run("recv", tensors, size_of(tensor), None, apply=apply, meet=meet, peer=source, tag=tag)
        work.source = source
        return work

    def _check_peer(self, peer: int) -> None:
        """NCCL copies what a rank sends to itself; gloo fails."""
        if peer == self._position and self._backend_name == "gloo":
            raise RuntimeError(f"gloo has no connection from a rank to itself ({find_source()})")

    def _passes(self, tensor: Tensor) -> bool:
        """Whether a message goes through the exchange: its bytes, or on CPUs that it was sent, to keep ranks in order.

        On a GPU the host must not wait for a message that only the device needs.
        """
        return is_control(tensor) or not (tensor.is_cuda or self._session.pacer is not None)

    def _tag(self, tag: int) -> int:
        """NCCL knows no tags: its messages match in the order they are issued."""
        return 0 if self._backend_name == "nccl" else tag

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> VirtualWork:
        """Nobody can say which virtual rank would have been first."""
        raise UnsupportedError(f"recv without a source cannot be emulated ({find_source()}); name the source rank")


def _settle_all(settles: Sequence[Callable[[], object]]) -> Callable[[], object]:
    return lambda: [settle() for settle in settles]


def _split(tensor: Tensor, splits: Sequence[int], size: int) -> list[Tensor]:
    """The rows for each position of an all-to-all, or equal parts where no splits are given."""
    if splits:
        return list(torch.split(tensor, list(splits)))
    # Backends move the bytes as they lie: a dense tensor in another order of dimensions is allowed.
    return list(tensor.as_strided((tensor.numel(),), (1,)).chunk(size)) if tensor.numel() else [tensor] * size


def _copy_to_all(slots: list[Tensor], own: Tensor) -> None:
    for slot in slots:
        if slot.shape == own.shape:
            slot.copy_(own)
        else:
            contents.exchange_into(slot, own)
