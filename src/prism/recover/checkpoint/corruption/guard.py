"""The guard in the training loop. On a GPU no step waits for the device: results are read a few steps later.

- Every step each rank's own gradient norm, before it is averaged, is compared with what is usual for that rank. When
  one stands out, all ranks compute their micro-batches of that step again: odd data stands out again, a flipped bit
  does not.
- Every `every_steps` steps replicas compare checksums of weights and optimizer state, which must agree to the bit. A
  flipped weight, moment or averaged gradient never heals by itself, so it is still there at the next comparison.
- At every fourth comparison all ranks compute part of one rank's micro-batch, another rank's each time, and compare:
  hardware that gives the same wrong answer twice is found by its peers.

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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from prism.recover.checkpoint.corruption.judging import (
    Corruption,
    CorruptionConfig,
    Kind,
    Norm,
    NormHistory,
    find_odd_bits,
    find_odd_norms,
    find_outliers,
    judge_repeated,
)
from prism.recover.checkpoint.corruption.measuring import (
    HostCopy,
    Reading,
    SketchReading,
    gradients_of,
    move,
    norm_of,
    state_of,
    versions_of,
)
from prism.recover.checkpoint.corruption.own_norm import OwnNorm, own_norm_of
from prism.recover.checkpoint.ranks import LaggedVote, Ranks
from prism.recover.progress import Progress

LossOf = Callable[[Any], torch.Tensor]
_MAX_KEPT = 12  # steps whose batches are kept: those that the device may be behind, and those that two votes take


@dataclass(slots=True)
class _Step:
    """A step that may have to be computed again."""

    number: int
    reading: Reading
    batch: Any
    versions: tuple[int, ...]
    norm: Norm | None = None
    stands_out: bool = False


@dataclass(frozen=True, slots=True)
class _Check:
    """A comparison between ranks whose numbers are on their way."""

    step: int
    reading: SketchReading


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
        self._device = next(self.model.parameters()).device
        # The CPU computes before it returns, so that there is nothing to wait for.
        self._lag = min(self.config.lag_steps, self.config.every_steps - 1) if self._device.type != "cpu" else 0
        self._history = NormHistory(self.config)
        self._steps: deque[_Step] = deque(maxlen=_MAX_KEPT)
        self._vote = LaggedVote(self.ranks)
        self._comparison: _Check | None = None
        self._probe: _Check | None = None
        self._shared: HostCopy | None = None
        self._clean_step = 0
        self._own_norm: OwnNorm | None = own_norm_of(self._ddp) if self._ddp is not None else None

    def after_backward(self, step: int, loss_of: LossOf, batch: Any) -> Corruption | None:
        """Check this step's gradients; every rank calls this before the optimizer's step."""
        norm = self._take_norm()
        self._hold(norm)
        self._steps.append(_Step(step, Reading(norm), batch, versions_of(batch)))
        self._read_norms()
        found = None
        # The answer may take some steps, because the device is behind; so there is no need to ask in every step.
        if step % max(1, self._lag) == 0 and self._vote.ask(int(any(one.stands_out for one in self._steps))):
            found = self._resolve(loss_of)
        self._start_probe(step, loss_of, batch)
        return found or self._settle_probe(step)

    def after_step(self, step: int) -> Corruption | None:
        """Compare replicas where a comparison is due; needs no batch, so any callback can call it."""
        if self.ranks.world_size > 1 and self._due(step):
            self._comparison = _Check(step, SketchReading(state_of(self.model, self.optimizer), norm=False))
        if self._comparison is None or step < self._comparison.step + self._lag:
            return None
        check, self._comparison = self._comparison, None
        found = self._compare(check)
        if found is None:
            self._clean_step = check.step
        return found

    # -- measuring without waiting

    def _due(self, step: int) -> bool:
        return step % self.config.every_steps == 0

    def _take_norm(self) -> torch.Tensor:
        """This rank's own gradient norm, before averaging where DDP averages."""
        norm = norm_of(gradients_of(self.model)) if self._own_norm is None else self._own_norm.take()
        return torch.zeros((), device=self._device) if norm is None else norm

    def _hold(self, norm: torch.Tensor) -> None:
        """Let a fused optimizer leave out, on the device, a step whose gradient is not finite on any rank.

        Weights that became NaN would hide the rank that caused it. GradScaler uses, and replaces, the same attribute.
        """
        if not getattr(self.optimizer, "_step_supports_amp_scaling", False):
            return
        if self._ddp is None and self.ranks.world_size > 1:
            return  # how gradients are shared is not known
        flag = (~norm.isfinite()).float()
        if self._ddp is not None:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._ddp.process_group)
        self.optimizer.found_inf = flag  # type: ignore[union-attr]

    def _read_norms(self, *, wait: bool = False) -> None:
        """Process the norms that have arrived, in order; wait for the oldest before it is dropped."""
        for one in self._steps:
            if one.norm is not None:
                continue
            late = one is self._steps[0] and len(self._steps) == _MAX_KEPT
            if not (wait or late or one.reading.ready):
                return
            one.norm = self._history.judge(one.reading.wait())
            one.stands_out = self._history.stands_out(one.norm)

    # -- a gradient that stands out

    def _resolve(self, loss_of: LossOf) -> Corruption | None:
        """Some rank saw an unusual gradient: all ranks compare theirs and compute it again."""
        self._read_norms(wait=True)
        told = self.ranks.gather({one.number: (one.norm, one.stands_out) for one in self._steps})
        flagged = sorted(number for number in told[0] if any(rank.get(number, (None, False))[1] for rank in told))
        for one in self._steps:
            one.stands_out = False
        found, suspected = None, False
        for number in flagged:
            norms = [norm for rank in told if (norm := rank.get(number, (None, False))[0]) is not None]
            suspects = find_outliers(norms, self.config) if len(norms) == len(told) else []
            if suspects and found is None:
                suspected = True
                found = self._repeat(number, norms, suspects, loss_of)
        if found is None and suspected:
            # It stands out again: odd data, or weights that are damaged on this rank alone.
            found = self._compare(_Check(flagged[0], SketchReading(state_of(self.model, self.optimizer), norm=False)))
        return found

    def _repeat(self, number: int, norms: list[Norm], suspects: list[int], loss_of: LossOf) -> Corruption | None:
        own = next(one for one in self._steps if one.number == number)
        same = own.versions == versions_of(own.batch)  # a reused buffer holds a later batch by now
        again = self.ranks.gather(self._compute(loss_of, own.batch).wait().norm if same else None)
        judged = judge_repeated(norms, again, suspects, self.config)
        if judged.guilty:
            why = "its gradient cannot be reproduced from the same data"
            return self._tell(number, "gradient", judged.guilty, why, clean_step=number - 1)
        if judged.weights_lost:
            why = "its gradient alone stood out, and the weights of all were lost by it; the data may be the cause"
            return self._tell(number, "gradient", tuple(suspects), why, clean_step=number - 1, proven=False)
        return None

    # -- comparisons between ranks

    def _compare(self, check: _Check) -> Corruption | None:
        if self.ranks.world_size < 2:
            return None
        odd = find_odd_bits(told := self.ranks.gather(check.reading.wait()))
        if not odd:
            return None
        why = "weights or optimizer state differ from the other replicas"
        if len(odd) == len(told):
            why = "replicas differ and no majority says which is right"
        return self._tell(check.step, "replica", odd, why)

    def _start_probe(self, step: int, loss_of: LossOf, batch: Any) -> None:
        """All ranks compute part of one rank's micro-batch, which was copied to the host a little before."""
        if self.ranks.world_size < 3:
            return  # if only two ranks differ, either may be wrong; replicas are still compared
        every = self.config.every_steps * self.config.checks_per_probe
        turn = (step + every - 1) // every % self.ranks.world_size
        if self.ranks.rank == turn and self._shared is None and -step % every <= min(self._lag, 2):
            self._shared = HostCopy(batch, self.config.probe_share)
        if step % every == 0:
            own, self._shared = self._shared, None
            shared = self.ranks.from_rank(turn, own.wait() if own is not None else None)
            self._probe = _Check(step, self._compute(loss_of, move(shared, self._device)))

    def _settle_probe(self, step: int) -> Corruption | None:
        if self._probe is None or step < self._probe.step + self._lag:
            return None
        check, self._probe = self._probe, None
        odd = find_odd_norms(self.ranks.gather(check.reading.wait()), self.config)
        if not odd:
            return None
        return self._tell(check.step, "probe", odd, "its gradient of a shared micro-batch differs from its peers'")

    def _compute(self, loss_of: LossOf, batch: Any) -> SketchReading:
        """Gradients of a micro-batch, with the same random numbers every time; the model is left unchanged."""
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
        return SketchReading(gradient for gradient in gradients if gradient is not None)

    def _tell(
        self, step: int, kind: Kind, ranks: tuple[int, ...], why: str, *, clean_step: int | None = None, **more: bool
    ) -> Corruption:
        hosts = self.ranks.gather(self.progress.orders.host)
        found = Corruption(
            step=step,
            kind=kind,
            ranks=ranks,
            evidence=why,
            hosts=tuple(hosts[rank] for rank in ranks),
            last_clean_step=self._clean_step if clean_step is None else clean_step,
            proven=len(ranks) == 1 and more.get("proven", True),
        )
        if self.ranks.rank == 0:
            self.progress.event(
                "corruption",
                step=step,
                last_clean_step=found.last_clean_step,
                ranks=list(ranks),
                hosts=list(found.hosts),
                proven=found.proven,
                why=str(found),
            )
        return found
