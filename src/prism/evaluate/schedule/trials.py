"""What is evaluated, where, and in which pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEPT_DATASETS = 8  # that a worker keeps ready beside its model


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One saved model. `step` is None where training did not number it."""

    name: str
    path: str  # a folder, or an address that a storage reads
    bytes: int
    parameters: int  # 0: not known
    step: int | None = None
    gpus: int = 1  # that one worker needs to hold it; 0: it runs on the CPU
    priority: int = 0  # higher runs first
    weight: float = 1.0  # its share of the workers beside others of the same priority
    assets: str | None = None  # a folder with config.json and tokenizer, where they are not beside the weights
    base: str | None = None  # the folder of the model that an adapter changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One set of samples and how they are inferred and scored."""

    name: str
    adapter: str  # "lm-eval", "command", "builtin"
    task: str
    samples: int
    tokens: int = 0  # read and written per sample, 0: not known
    splittable: bool = True  # parts may be inferred and scored apart
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""  # of the task, as its author counts; empty: not said
    identity: str = ""  # of data, prompts and the code that reads them, in one word
    directions: Mapping[str, bool] = field(default_factory=dict)  # by metric: whether higher is better


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetric:
    """A metric that a group takes from its tasks."""

    metric: str
    filters: tuple[str, ...] | None = None  # None: all that its tasks have
    by_size: bool = True  # tasks count by their samples, else all alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Datasets whose metrics are averaged under one name."""

    name: str
    datasets: tuple[str, ...]
    metrics: tuple[GroupMetric, ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Part:
    """Samples `first` to `last` (not included) of a dataset, for one checkpoint."""

    checkpoint: str
    dataset: str
    first: int
    last: int

    @property
    def samples(self) -> int:
        """How many samples it holds."""
        return self.last - self.first

    def __str__(self) -> str:
        return f"{self.checkpoint}/{self.dataset}[{self.first}:{self.last}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Parts that an earlier run has finished; those scored need not be in both."""

    inferred: tuple[Part, ...] = ()
    scored: tuple[Part, ...] = ()


NOTHING_KEPT = Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Parts of one checkpoint that one worker infers, one after the other, without giving its GPUs back."""

    id: str
    checkpoint: str
    parts: tuple[Part, ...]
    attempt: int = 1
    shrink: int = 0  # halvings of the batch size, after it ran out of memory
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine: where checkpoints lie in shared memory and outputs are scored."""

    id: str
    cpus: int = 8  # outputs scored at once
    memory_bytes: int = 0  # for checkpoints in shared memory, 0: not limited


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process with its own GPUs; it keeps its model and the datasets it used last."""

    id: str
    node: str
    gpus: tuple[int, ...] = ()
