# mypy: disable-error-code="override"
"""gloo for CUDA tensors by way of host copies, under NCCL's rules for the lifetime of tensors.

usage: staged_gloo.py SCRIPT ARGS...   (what torchrun starts)

One GPU cannot host two ranks of NCCL, and gloo's own handling of CUDA tensors ties their memory to streams of its own
and does not carry every operation. Here every process is real and every byte travels, but the allocator sees only the
program: host copies need no device memory, and an asynchronous operation keeps its tensors until it is waited for.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.distributed_c10d as c10d  # noqa: E402
from torch import Tensor  # noqa: E402

from prism.emulate.inside.named_group import NamedGroup  # noqa: E402

BACKEND = "staged"


class StagedWork(dist.Work):
    """Waits for gloo, then brings the results to the device."""

    def __init__(self, works: list[Any], results: list[tuple[Tensor, Tensor]], kept: list[Tensor]) -> None:
        super().__init__()
        self._works, self._results, self._kept = works, results, kept
        self._outputs = [output for output, _ in results] or list(kept)
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block the host: times are not what this is for."""
        for work in self._works:
            work.wait()
        with torch.no_grad():
            for output, staged in self._results:
                output.copy_(staged)
        self._works, self._results, self._kept, self._outputs = [], [], [], []
        return True

    def get_future(self) -> Any:
        """DDP's reducer asks for this one."""
        if self._future is None:
            outputs = self._outputs
            self.wait()
            on_gpu = bool(outputs) and outputs[0].is_cuda
            self._future = torch.futures.Future(devices=[outputs[0].device]) if on_gpu else torch.futures.Future()
            self._future.set_result(outputs)
        return self._future

    def is_completed(self) -> bool:
        """Nobody polls here."""
        return True

    def result(self) -> list[Tensor]:
        """The outputs."""
        return self._outputs

    def synchronize(self) -> None:
        """The same as wait."""
        self.wait()


class StagedGroup(NamedGroup):
    """A gloo group whose tensors may live on the device."""

    def __init__(self, store: Any, position: int, size: int, name: str, timeout: timedelta) -> None:
        super().__init__(position, size, name, "gloo", timeout)
        self._gloo = dist.ProcessGroupGloo(store, position, size, timeout)  # type: ignore[attr-defined]
        self._batch: list[StagedWork] | None = None

    def _stage(self, outputs: list[Tensor], inputs: list[Tensor], run: Callable[..., Any]) -> StagedWork:
        """Inputs to the host, the operation there, outputs back when it is waited for; an output may be an input."""
        copies = {id(t): t.detach().cpu() if t.is_cuda else t for t in inputs}
        hosts = [copies.get(id(t), torch.empty(t.shape, dtype=t.dtype)) if t.is_cuda else t for t in outputs]
        work = run(hosts, [copies[id(t)] for t in inputs])
        results = [(t, host) for t, host in zip(outputs, hosts, strict=True) if t.is_cuda]
        return StagedWork([work] if work is not None else [], results, [*outputs, *inputs])

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> StagedWork:
        """Sum on the host; an average is a sum divided, which gloo does not do."""
        options = dist.AllreduceOptions()  # type: ignore[attr-defined]
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        average = op == dist.ReduceOp.AVG
        options.reduceOp = dist.ReduceOp.SUM if average else op
        works = [self._stage([t], [t], lambda out, _: self._gloo.allreduce(out, options)) for t in tensors]
        if average:
            for work in works:
                _finish(work)
                for _, host in work._results:
                    host.div_(self.size())
        return _join(works)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[Tensor], opts: Any) -> StagedWork:
        """From the root."""
        return self._stage(tensors, tensors, lambda out, _: self._gloo.broadcast(out, opts))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> StagedWork:
        """Every member's tensor."""
        return self._stage(outputs[0], inputs, lambda out, own: self._gloo.allgather([out], own))

    def all_gather_single(self, output: Tensor, own: Tensor, opts: Any = None) -> StagedWork:
        """Into one buffer."""
        size = self.size()
        return self._stage([output], [own], lambda out, i: self._gloo.allgather([list(out[0].chunk(size))], i))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> StagedWork:
        """Several in one call."""
        return _join([self.all_gather_single(o, i) for o, i in zip(outputs, inputs, strict=True)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single(self, output: Tensor, full: Tensor, opts: Any = None) -> StagedWork:
        """An all-reduce on the host, of which one part is kept."""
        part = output.numel()
        whole = full.detach().cpu().view(-1)
        self._gloo.allreduce([whole]).wait()
        if opts is not None and opts.reduceOp == dist.ReduceOp.AVG:
            whole.div_(self.size())
        host = whole[self.rank() * part : (self.rank() + 1) * part].view(output.shape)
        return StagedWork([], [(output, host)], [output, full])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> StagedWork:
        """Several in one call."""
        return _join([self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(self, output: Tensor, own: Tensor, received: Any, sent: Any, opts: Any = None) -> StagedWork:
        """Uneven parts too."""
        return self._stage(
            [output], [own], lambda out, i: self._gloo.alltoall_base(out[0], i[0], list(received), list(sent))
        )

    alltoall_base = all_to_all_single

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> StagedWork:
        """From the root."""
        parts = inputs[0] if inputs else []
        return self._stage(outputs, parts, lambda out, own: self._gloo.scatter(out, [own] if own else [], opts))

    def barrier(self, opts: Any = None) -> StagedWork:
        """On the host."""
        return StagedWork([self._gloo.barrier()], [], [])

    def send(self, tensors: list[Tensor], target: int, tag: int = 0) -> StagedWork:
        """The copy leaves at once."""
        return self._stage([], tensors, lambda _, own: self._gloo.send(own, target, tag))

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> StagedWork:
        """Reaches the device when it is waited for."""
        return self._stage(tensors, [], lambda out, _: self._gloo.recv(out, source, tag))

    def _start_coalescing(self, device: torch.device) -> None:
        """Each goes by itself."""

    def _end_coalescing(self, device: torch.device) -> Any:
        return None


def _finish(work: StagedWork) -> None:
    for inner in work._works:
        inner.wait()
    work._works = []


def _join(works: list[StagedWork]) -> StagedWork:
    return StagedWork(
        [inner for w in works for inner in w._works],
        [r for w in works for r in w._results],
        [t for w in works for t in w._kept],
    )


def install() -> None:
    """Every group that the script makes is a staged one, under gloo's name."""
    dist.Backend.register_backend(BACKEND, lambda *a: None, extended_api=True, devices=["cpu", "cuda"])
    plugin, create = dist.Backend._plugins[BACKEND.upper()], c10d._new_process_group_helper

    def new_group(
        size: int, rank: Any, ranks: Any, backend: Any, store: Any, name: Any, *args: Any, **rest: Any
    ) -> Any:
        def make(options: Any, _: Any) -> StagedGroup:
            timeout = rest.get("timeout") or timedelta(minutes=30)
            return StagedGroup(options.store, options.group_rank, options.group_size, str(name), timeout)

        dist.Backend._plugins[BACKEND.upper()] = plugin._replace(creator_fn=make, extended_api=True)
        rest.pop("device_id", None)
        rest.pop("backend_options", None)
        group, kept = create(size, rank, ranks, dist.Backend(BACKEND), store, name, *args, **rest)
        if isinstance(group, StagedGroup):
            c10d._world.pg_map[group] = (dist.Backend("gloo"), kept)
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(dist.Backend("gloo")))
        return group, kept

    c10d._new_process_group_helper = new_group


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
