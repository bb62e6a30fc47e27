"""Ways to lay a model out over GPUs: the one asked for, or all that are worth a look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from prism.errors import BadConfigError
from prism.simulate.plans.job import Job
from prism.simulate.plans.model import ModelShape

_DEGREES = ("tp", "pp", "dp", "cp", "ep")
_SHARDINGS = ("none", "zero1", "zero2", "fsdp", "hsdp")
_LONG_SEQUENCE = 16_384  # positions from which it pays to divide a sequence
_MOST_STAGES, _CHUNKS, _MICRO_BATCHES = 32, (1, 2, 4, 8), (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a job is divided; `vp` are the model chunks of a pipeline's rank, `mbs` the sequences of a micro-batch."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    vp: int = 1
    mbs: int = 1
    sharding: str = "zero1"
    recompute: bool = False

    def describe(self) -> dict[str, Any]:
        """What differs from the plainest layout; the five degrees always."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _DEGREES}
        found |= {"vp": self.vp} if self.vp > 1 else {}
        return found | {"mbs": self.mbs, "sharding": self.sharding, "recompute": self.recompute}

    def job(self, model: ModelShape, global_batch: int, *, grad_bytes: int = 4) -> Job:
        """The job of one step; BadConfigError where the layout does not divide the model or the batch."""
        per_replica = self.dp * self.mbs
        if global_batch % per_replica:
            raise BadConfigError(
                f"--global-batch is {global_batch} sequences, expected a multiple of dp x mbs = {per_replica}"
            )
        return Job(
            id="estimate", model=model, dp=self.dp, tp=self.tp, pp=self.pp, cp=self.cp, ep=self.ep,
            sharding=self.sharding, microbatches=global_batch // per_replica, micro_batch=self.mbs,  # type: ignore[arg-type]
            schedule="interleaved" if self.vp > 1 and self.pp > 1 else "1f1b", virtual_stages=self.vp, efficiency=1.0,
            grad_bytes=grad_bytes, gap_ms=0.0,
        )  # fmt: skip


def read_layout(text: str, gpus: int) -> Layout:
    """A layout from tp=8,pp=4; dp is what is left of the GPUs unless it is given."""
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = (piece.strip() for piece in part.partition("="))
        values[name] = _read_value(name, value, text)
    used = 1
    for name in ("tp", "pp", "cp"):
        used *= values.get(name, 1)
    if gpus % used:
        raise BadConfigError(f"--layout is '{text}': tp x pp x cp = {used} does not divide --gpus {gpus}")
    layout = Layout(**{"dp": gpus // used, **values})
    if layout.dp * used != gpus:
        raise BadConfigError(f"--layout is '{text}': tp x pp x cp x dp = {layout.dp * used}, but --gpus is {gpus}")
    return layout


def _read_value(name: str, value: str, text: str) -> Any:
    if name == "sharding" and value in _SHARDINGS:
        return value
    if name == "recompute" and value in ("true", "false"):
        return value == "true"
    if name in (*_DEGREES, "vp", "mbs") and value.isdecimal() and 0 < int(value) <= 1_000_000:
        return int(value)
    raise BadConfigError(
        f"--layout is '{text}': '{name}={value}' is not one of tp, pp, dp, cp, ep, vp, mbs = a whole number, "
        f"sharding = {', '.join(_SHARDINGS)}, recompute = true or false"
    )


def list_layouts(model: ModelShape, gpus: int, gpus_per_host: int, global_batch: int) -> Iterator[Layout]:
    """Layouts that divide the model: tensor parallelism inside a host, whole stages, and what is left as replicas."""
    tps = [
        tp for tp in _powers(gpus_per_host) if model.heads % tp == 0 and model.kv_heads % min(tp, model.kv_heads) == 0
    ]
    pps = [pp for pp in range(1, min(gpus, _MOST_STAGES) + 1) if model.layers % pp == 0 and gpus % pp == 0]
    cps = _powers(gpus_per_host) if model.seq >= _LONG_SEQUENCE else [1]
    eps = [ep for ep in _powers(model.experts) if model.experts % ep == 0] if model.experts else [1]
    for tp, pp, cp, ep, vp, mbs in product(tps, pps, cps, eps, _CHUNKS, _MICRO_BATCHES):
        used = tp * pp * cp
        dp = gpus // used
        if gpus % used or dp < 1 or dp % ep or global_batch % (dp * mbs) or (pp == 1 and vp > 1):
            continue
        if model.layers % (pp * vp) or (vp > 1 and (global_batch // (dp * mbs)) % pp):
            continue
        for sharding in ("zero1", "fsdp") if pp == 1 and dp * cp > 1 else ("zero1",):
            yield Layout(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, vp=vp, mbs=mbs, sharding=sharding)


def _powers(most: int) -> list[int]:
    return [1 << k for k in range(max(most, 1).bit_length())]
