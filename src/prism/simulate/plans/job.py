"""One training job of a scenario: its model, its layout, and what it does between steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prism.errors import BadConfigError
from prism.records.settings import Checked, number, one_of
from prism.simulate.plans.model import ModelShape

Schedule = Literal["1f1b", "gpipe", "interleaved", "zero_bubble"]
Sharding = Literal["none", "zero1", "zero2", "fsdp", "hsdp"]
Order = Literal["tp-cp-dp-pp", "tp-cp-pp-dp", "tp-pp-dp-cp", "dp-tp-cp-pp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(Checked):
    """The GPUs of a job; without hosts it gets the first free ones."""

    hosts: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()  # which of each host; all where not given
    gpus_of_hosts: tuple[int, ...] = ()  # uneven: how many of those on each host


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Checked):
    """Saving to storage every so many steps."""

    every_steps: int = number(20, 1, 1_000_000)
    blocking: bool = True  # the job waits for storage; otherwise it continues after a copy to host memory
    storage_gb_per_s: float = number(200.0, 0.001, 100_000)  # of the whole storage system


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Checked):
    """A pause every few steps, in which the model is evaluated elsewhere or without traffic."""

    every_steps: int = number(50, 1, 1_000_000)
    pause_s: float = number(5.0, 0, 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(Checked):
    """The job stops at once and comes back later."""

    at_s: float = number(30.0, 0, 1e7)
    down_s: float = number(10.0, 0, 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Checked):
    """A job plan; degrees multiply to its GPUs."""

    id: str
    model: ModelShape = field(default_factory=ModelShape)
    dp: int = number(1, 1, 100_000)
    tp: int = number(1, 1, 1024)
    pp: int = number(1, 1, 1024)
    cp: int = number(1, 1, 1024)
    ep: int = number(1, 1, 4096)
    sharding: Sharding = field(default="none", metadata=one_of(Sharding))
    shard_ranks: int = number(8, 1, 100_000)  # hsdp: ranks that share one copy
    microbatches: int = number(8, 1, 100_000)  # per step and replica: gradient accumulation
    micro_batch: int = number(1, 1, 10_000)  # sequences
    schedule: Schedule = field(default="1f1b", metadata=one_of(Schedule))
    virtual_stages: int = number(2, 1, 64)  # interleaved: chunks per rank
    overlap: bool = True  # gradients are sent during backward, parameters during forward
    bucket_mb: float = number(400.0, 0.1, 1e6)  # of gradients
    grad_bytes: int = number(4, 1, 8)  # per parameter; Megatron reduces in FP32
    efficiency: float = number(0.45, 0.01, 1)  # of the GPU's peak while computing
    # The fastest-changing dimension first; the default is Megatron's order.
    order: Order = field(default="tp-cp-dp-pp", metadata=one_of(Order))
    placement: Placement = field(default_factory=Placement)
    start_s: float = number(0.0, 0, 1e7)
    gap_ms: float = number(20.0, 0, 60_000)  # the host prepares a step
    compute_jitter: float = number(0.01, 0, 1)  # standard deviation of the logarithm
    communication_jitter: float = number(0.03, 0, 1)
    norm_traffic: bool = False  # the gradient norm's few bytes are summed over all ranks, visibly
    data_loading: bool = False  # hosts read their samples from storage
    checkpoint: Checkpoint | None = None
    evaluation: Evaluation | None = None
    restarts: tuple[Restart, ...] = ()

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.id:
            raise BadConfigError("'id' is empty, expected a name")
        self._check_divisions()
        if self.schedule == "interleaved" and self.pp > 1 and self.microbatches % self.pp:
            raise BadConfigError(
                f"'microbatches' is {self.microbatches}, expected a multiple of pp = {self.pp} for interleaved stages"
            )
        if self.sharding in ("fsdp", "hsdp") and self.pp > 1:
            raise BadConfigError(f"'sharding' is {self.sharding!r} with pp = {self.pp}; use zero1 or zero2, or pp: 1")

    def _check_divisions(self) -> None:
        chunks = self.pp * self.num_chunks
        rules = (
            (self.model.layers, chunks, "'model.layers'", "pp x virtual_stages"),
            (self.model.heads, self.tp, "'model.heads'", "tp"),
            (self.dp, self.ep, "'dp'", "ep"),
            (max(self.model.experts, self.ep), self.ep, "'model.experts'", "ep"),
        )
        for value, divisor, name, by in rules:
            if value % divisor:
                raise BadConfigError(f"{name} is {value}, expected a multiple of {by} = {divisor}")
        if self.ep > 1 and not self.model.experts:
            raise BadConfigError(f"'ep' is {self.ep} but the model has no experts; set model.experts or ep: 1")
        if self.sharding == "hsdp" and (self.dp * self.cp) % self.shard_ranks:
            raise BadConfigError(
                f"'shard_ranks' is {self.shard_ranks}, expected a divisor of dp x cp = {self.dp * self.cp}"
            )

    @property
    def num_gpus(self) -> int:
        """Ranks of the job."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def num_chunks(self) -> int:
        """Model chunks per rank."""
        return self.virtual_stages if self.schedule == "interleaved" and self.pp > 1 else 1
