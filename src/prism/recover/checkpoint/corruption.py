"""Silent data corruption: a rank whose numbers are wrong without any error, found and named.

Three checks, from cheap to strong:

- Every step each rank's own gradient norm, before it is averaged, is compared with what is usual. A rank that stands
  out computes its micro-batch again from the same weights: if the second result is the same, it was the data.
- Every `every_steps` steps replicas compare checksums of weights and optimizer state, which must agree to the bit. A
  flipped weight, moment or averaged gradient never heals by itself, so it is still there at the next comparison.
- At the same time all ranks compute part of one rank's micro-batch, another rank's each time, and compare: hardware
  that gives the same wrong answer twice is found by its peers.

    guard = CorruptionGuard(model, optimizer)
    for step, batch in enumerate(loader):
        loss_of(batch).backward()
        found = guard.after_backward(step, loss_of, batch)
        optimizer.step()
        found = found or guard.after_step(step)      # this alone also works, from a callback that sees no batch
        if found:
            raise SystemExit(str(found))
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from prism.recover.checkpoint.ranks import Ranks
from prism.recover.progress import Progress

Kind = Literal["gradient", "replica", "probe"]
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = 0x9E3779B97F4A7C15  # an odd multiplier per tensor, so that equal changes in two of them do not cancel
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionConfig:
    """How often, and what counts as standing out."""

    every_steps: int = 50
    norm_factor: float = 8.0  # a rank's gradient norm, against the median of all ranks over the last steps
    num_usual: int = 64  # steps that say what is usual
    min_usual: int = 8  # before that only NaN and infinity stand out
    tolerance: float = 1e-3  # of a norm, where kernels do not give the same bits twice
    probe_share: float = 0.25  # of a micro-batch that all ranks compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A set of tensors in two numbers: how large, and the sum of all bits."""

    norm: float
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Numbers that are wrong, and whose they are."""

    step: int
    kind: Kind
    ranks: tuple[int, ...]  # more than one: it is one of these, or all
    evidence: str
    hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" on {', '.join(sorted(set(self.hosts)))}" if self.hosts else ""
        who = " or ".join(str(rank) for rank in self.ranks)
        return f"step {self.step}: rank {who}{where} computes wrong numbers: {self.evidence}"


# -- measuring


def measure_norm(tensors: Sequence[torch.Tensor]) -> float:
    """The norm of all tensors together: one pass, one wait for the device."""
    local = [one for one in map(_local, tensors) if one.numel()]
    if not local:
        return 0.0
    # AdamW's step counters may lie on the CPU while the rest is on a GPU.
    norms = [one.float().to(local[0].device, non_blocking=True) for one in torch._foreach_norm(local)]
    return float(torch.stack(norms).norm())


def sketch(tensors: Iterable[torch.Tensor]) -> Sketch:
    """The norm and the bits of tensors; two passes over them, one wait for the device."""
    filled = [one for one in map(_local, tensors) if one.numel()]
    if not filled:
        return Sketch(norm=0.0, bits=0)
    norm = measure_norm([one for one in filled if one.is_floating_point()])
    device = max((one.device for one in filled), key=lambda d: d.type != "cpu")
    sums = torch.stack([_sum_bits(one).to(device, non_blocking=True) for one in filled])
    mixed = sum((2 * number + 1) * _ODD * value for number, value in enumerate(sums.tolist()))
    return Sketch(norm=norm, bits=mixed & _MASK)


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The gradients that a model has now."""
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Weights and optimizer state, in the same order on every replica."""
    tensors: list[torch.Tensor] = list(model.parameters())
    if optimizer is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                entry = optimizer.state.get(parameter, {})
                tensors += [entry[name] for name in sorted(entry) if isinstance(entry[name], torch.Tensor)]
    return tensors


def _sum_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.detach()
    if isinstance(found, DTensor):
        found = found._local_tensor
    return found.contiguous()


# -- judging: pure, on what all ranks measured


class NormHistory:
    """What gradient norms are usual, for each rank by itself: shards differ in size and in what they hold."""

    def __init__(self, config: CorruptionConfig) -> None:
        self._config = config
        self._steps: deque[tuple[float, ...]] = deque(maxlen=config.num_usual)

    def ratios(self, norms: Sequence[float]) -> list[float]:
        """Each rank's norm against what is usual for it; a rise that most ranks share does not count."""
        if len(self._steps) < self._config.min_usual:
            return [1.0 if math.isfinite(norm) else math.inf for norm in norms]
        given = np.array(norms)
        ratios = np.where(np.isfinite(given), given / np.maximum(np.median(self._steps, axis=0), 1e-30), np.inf)
        shared = float(np.median(ratios)) if len(ratios) > 2 else 1.0
        found: list[float] = (ratios / max(1.0, shared) if math.isfinite(shared) else ratios).tolist()
        return found

    def find_outliers(self, norms: Sequence[float]) -> list[int]:
        """Ranks whose norm stands out."""
        return [rank for rank, ratio in enumerate(self.ratios(norms)) if ratio > self._config.norm_factor]

    def add(self, norms: Sequence[float]) -> None:
        """Remember a step in which nobody stood out."""
        self._steps.append(tuple(norms))

    def is_usual(self, rank: int, norms: Sequence[float], repeated: float) -> bool:
        """Whether a repetition gives a norm that does not stand out, where the first result did."""
        changed = [repeated if number == rank else norm for number, norm in enumerate(norms)]
        return math.isfinite(repeated) and self.ratios(changed)[rank] <= self._config.norm_factor / 2


def find_odd_bits(sketches: Sequence[Sketch]) -> tuple[int, ...]:
    """Replicas that differ from the majority; all, when there is none; empty when all agree."""
    counts = Counter(one.bits for one in sketches).most_common()
    if len(counts) == 1:
        return ()
    if counts[0][1] * 2 <= len(sketches):
        return tuple(range(len(sketches)))
    return tuple(rank for rank, one in enumerate(sketches) if one.bits != counts[0][0])


def find_odd_norms(sketches: Sequence[Sketch], config: CorruptionConfig) -> tuple[int, ...]:
    """Ranks whose result of the same computation differs by more than kernels may."""
    if not find_odd_bits(sketches):
        return ()
    middle = statistics.median([one.norm for one in sketches if math.isfinite(one.norm)] or [math.nan])
    limit = config.tolerance * middle
    return tuple(rank for rank, one in enumerate(sketches) if not abs(one.norm - middle) <= limit)


# -- in the training loop


class CorruptionGuard:
    """One per rank, of replicas that hold the same weights (DDP; for HSDP give the group of replicas as `ranks`)."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        config: CorruptionConfig | None = None,
        *,
        ranks: Ranks | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config = config or CorruptionConfig()
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self.model: torch.nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self.optimizer = optimizer
        self.ranks = ranks or Ranks()
        self.progress = progress or Progress.from_environment(self.ranks.rank)
        self._history = NormHistory(self.config)
        self._buckets: list[torch.Tensor] = []
        if self._ddp is not None:
            # torch reads a hook's annotations and knows none that are text, as all are in this file.
            self._ddp.register_comm_hook(None, lambda state, bucket: self._note_bucket(bucket))

    def after_backward(self, step: int, loss_of: Callable[[Any], torch.Tensor], batch: Any) -> Corruption | None:
        """Look at this step's gradients; every rank calls this before the optimizer's step."""
        norms = self.ranks.gather(self._take_norm())
        suspects = self._history.find_outliers(norms)
        found = self._repeat(step, norms, suspects, loss_of, batch) if suspects else None
        if not suspects:
            self._history.add(norms)
        if found is None and self._due(step):
            found = self._probe(step, loss_of, batch)
        return found

    def after_step(self, step: int) -> Corruption | None:
        """Compare replicas where a comparison is due; needs no batch, so any callback can call it."""
        return self._compare(step) if self._due(step) and self.ranks.world_size > 1 else None

    def _compare(self, step: int) -> Corruption | None:
        told = self.ranks.gather(sketch(state_of(self.model, self.optimizer)))
        odd = find_odd_bits(told)
        if not odd:
            return None
        why = "weights or optimizer state differ from the other replicas"
        if len(odd) == len(told):
            why = "replicas differ and no majority says which is right"
        return self._tell(step, "replica", odd, why)

    def _due(self, step: int) -> bool:
        return step % self.config.every_steps == 0

    def _note_bucket(self, bucket: Any) -> Any:
        """DDP's hook: measure the gradients of this rank, then average them as usual."""
        self._buckets.append(torch.linalg.vector_norm(bucket.buffer(), dtype=torch.float32))
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def _take_norm(self) -> float:
        """This rank's own gradient norm, before averaging where DDP's hook saw it."""
        if self._ddp is None:
            return measure_norm(gradients_of(self.model))
        norms, self._buckets = self._buckets, []
        return float(torch.stack(norms).norm()) if norms else 0.0

    def _repeat(
        self, step: int, norms: list[float], suspects: list[int], loss_of: Callable[[Any], torch.Tensor], batch: Any
    ) -> Corruption | None:
        """Let the suspects compute their micro-batch again: odd data stands out again, a flipped bit does not."""
        own = self.ranks.rank
        guilty = own in suspects and self._history.is_usual(own, norms, self._compute(loss_of, batch).norm)
        odd = tuple(rank for rank, flag in enumerate(self.ranks.gather(guilty)) if flag)
        if not odd:
            # It stands out again: odd data, or weights that are damaged on this rank alone. The averaged gradient would
            # carry the damage to every replica and hide who had it, so replicas are compared before the step is taken.
            return self._compare(step)
        return self._tell(step, "gradient", odd, "its gradient cannot be reproduced from the same weights and data")

    def _probe(self, step: int, loss_of: Callable[[Any], torch.Tensor], batch: Any) -> Corruption | None:
        """All ranks compute part of one rank's micro-batch, another rank's every time."""
        if self.ranks.world_size < 3:
            return None  # two that differ do not say who is wrong; replicas are still compared
        turn = step // self.config.every_steps % self.ranks.world_size
        shared = self.ranks.from_rank(turn, _to(_part(batch, self.config.probe_share), torch.device("cpu")))
        device = next(self.model.parameters()).device
        told = self.ranks.gather(self._compute(loss_of, _to(shared, device)))
        odd = find_odd_norms(told, self.config)
        if not odd:
            return None
        return self._tell(step, "probe", odd, "its gradient of a shared micro-batch differs from its peers'")

    def _compute(self, loss_of: Callable[[Any], torch.Tensor], batch: Any) -> Sketch:
        """Gradients of a micro-batch, with the same random numbers every time and without a trace in the model."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        kept = [buffer.clone() for buffer in self.model.buffers()]
        devices = [parameters[0].device] if parameters[0].device.type == "cuda" else []
        unsynchronized = self._ddp.no_sync() if self._ddp is not None else contextlib.nullcontext()
        with torch.random.fork_rng(devices), unsynchronized:
            torch.manual_seed(0)
            gradients = torch.autograd.grad(loss_of(batch), parameters, allow_unused=True)
        with torch.no_grad():
            for buffer, old in zip(self.model.buffers(), kept, strict=True):
                buffer.copy_(old)
        return sketch(gradient for gradient in gradients if gradient is not None)

    def _tell(self, step: int, kind: Kind, ranks: tuple[int, ...], why: str) -> Corruption:
        hosts = self.ranks.gather(self.progress.orders.host)
        found = Corruption(step=step, kind=kind, ranks=ranks, evidence=why, hosts=tuple(hosts[rank] for rank in ranks))
        if self.ranks.rank == 0:
            self.progress.event("corruption", step=step, ranks=list(ranks), hosts=list(found.hosts), why=str(found))
        return found


def _part(batch: Any, share: float) -> Any:
    """The first rows of every tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch[: max(1, math.ceil(len(batch) * share))] if batch.dim() else batch
    if isinstance(batch, dict):
        return {key: _part(value, share) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(_part(value, share) for value in batch)
    return batch


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _to(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(_to(value, device) for value in batch)
    return batch
