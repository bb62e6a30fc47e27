"""The interface of an adapter, and a worker's cache, on which model and dataset stay ready for the next part."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prism.errors import BadConfigError, PrismError
from prism.evaluate.schedule.trials import KEPT_DATASETS, Dataset, Group

_MOST_REQUESTS = 100_000  # of all datasets that a worker keeps ready: with long prompts, about half a gigabyte

Record = dict[str, Any]


class SampleError(PrismError):
    """A metric that failed on one sample."""

    def __init__(self, sample: int, error: Exception) -> None:
        self.sample, self.reason = sample, f"{type(error).__name__}: {error}"
        super().__init__(f"sample {sample}: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What must be known of a dataset before it is planned."""

    samples: int
    identity: str  # changes when the data, its prompt or the code that reads it does
    tokens: int = 0  # per sample, 0: not known
    version: str = ""
    directions: Mapping[str, bool] = field(default_factory=dict)  # by metric: whether higher is better
    members: tuple[tuple[Dataset, Survey], ...] = ()  # of a group: what is run in its place
    groups: tuple[Group, ...] = ()


@dataclass(slots=True)
class WorkerCache:
    """What a process keeps between parts: one model on its device, some datasets to infer, one to score."""

    device: str = "cpu"
    spent_s: dict[str, float] = field(default_factory=dict)  # on making what is in each slot, until taken
    _kept: dict[str, dict[Any, Any]] = field(default_factory=dict)  # by slot and key, the last one used at the end

    def keep(self, slot: str, key: Any, make: Callable[[], Any]) -> Any:
        """The thing in a slot that has this key; a new one takes the place of those not used for longest."""
        kept = self._kept.setdefault(slot, {})
        if key in kept:
            kept[key] = kept.pop(key)
            return kept[key]
        self._make_room(slot)  # before the new one is made: a device holds one model
        start = time.monotonic()
        thing = make()
        self.spent_s[slot] = self.spent_s.get(slot, 0.0) + time.monotonic() - start
        self._kept.setdefault(slot, {})[key] = thing
        return thing

    def _make_room(self, slot: str) -> None:
        kept = self._kept[slot]
        most = KEPT_DATASETS if slot == "dataset" else 1
        while kept and (len(kept) >= most or sum(map(_size, kept.values())) > _MOST_REQUESTS):
            del kept[next(iter(kept))]
        if slot == "model":
            _free_device_memory(self.device)

    def drop(self, slot: str) -> None:
        """Let go of what is in a slot."""
        self._kept.pop(slot, None)
        if slot == "model":
            _free_device_memory(self.device)

    def take_spent_s(self, slot: str) -> float:
        """Seconds spent on a slot since they were last taken."""
        return self.spent_s.pop(slot, 0.0)

    def take_usage(self) -> dict[str, float]:
        """What the model in the cache has asked of a server since this was last called; else empty."""
        held = next(iter(self._kept.get("model", {}).values()), None)
        client = getattr(held, "client", None)
        return client.take_usage() if client is not None else {}

    def clear(self) -> None:
        """Let go of everything, after memory ran out."""
        self._kept.clear()
        _free_device_memory(self.device)


class Adapter(Protocol):
    """One way to run a dataset. All records are JSON objects, one per sample."""

    def survey(self, dataset: Dataset) -> Survey:
        """Count the samples and identify the data; raises InputError where a dataset cannot be opened."""
        ...

    def prepare(self, dataset: Dataset, model: Path, cache: WorkerCache, shrink: int) -> None:
        """Make model and dataset ready in the cache; called before each part, timed apart from it."""
        ...

    def infer(
        self, dataset: Dataset, model: Path, cache: WorkerCache, first: int, last: int, shrink: int
    ) -> list[Record]:
        """Outputs of samples `first` to `last` (not included); the batch is halved `shrink` times."""
        ...

    def score(self, dataset: Dataset, cache: WorkerCache, outputs: Sequence[Record], first: int) -> list[Record]:
        """What each sample scored; raises SampleError where the metric fails."""
        ...

    def combine(self, dataset: Dataset, scores: Sequence[Record]) -> dict[str, float]:
        """The dataset's metrics from the scores of all its samples, in order."""
        ...


def check_known(dataset: Dataset, known: Collection[str]) -> None:
    """Refuse unknown settings."""
    if unknown := sorted(set(dataset.settings) - set(known)):
        raise BadConfigError(f"dataset '{dataset.name}': no setting '{unknown[0]}'; known: {', '.join(known)}")


def read_directions(dataset: Dataset) -> dict[str, bool]:
    """Which way each metric is better, where the settings say it."""
    found: dict[str, bool] = {}
    for key, better in (("higher_is_better", True), ("lower_is_better", False)):
        names = dataset.settings.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadConfigError(f"dataset '{dataset.name}': 'settings.{key}' is {names!r}, expected a list of metrics")
        found |= dict.fromkeys(names, better)
    return found


def batch_of(dataset: Dataset, shrink: int, default: int = 1) -> int:
    """The batch size that settings ask for, halved as often as memory ran out."""
    size = dataset.settings.get("batch_size", default)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise BadConfigError(f"dataset '{dataset.name}': 'batch_size' is {size!r}, expected a whole number from 1")
    return max(1, size >> shrink)


def _size(thing: Any) -> int:
    return len(thing) if hasattr(thing, "__len__") else 1


def _free_device_memory(device: str) -> None:
    if device.startswith("cuda"):
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()
