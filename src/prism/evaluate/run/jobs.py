"""What worker processes do: look datasets up, pull checkpoints, infer, score, combine."""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prism.errors import InputError
from prism.evaluate.run.adapters import open_adapter
from prism.evaluate.run.adapters.adapter import Survey
from prism.evaluate.run.loading import open_source
from prism.evaluate.run.loading.source import SourceFile
from prism.evaluate.run.store import Store
from prism.evaluate.run.worker_context import WorkerContext
from prism.evaluate.schedule.trials import Dataset, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyJob:
    """Count samples and identify data."""

    datasets: tuple[Dataset, ...]

    def run(self, place: WorkerContext) -> list[Survey] | str:
        """One answer per dataset, or why one of them cannot be used."""
        try:
            return [open_adapter(dataset.adapter).survey(dataset) for dataset in self.datasets]
        except InputError as error:
            return str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpJob:
    """Import what inference needs, while the checkpoint is on its way."""

    modules: tuple[str, ...]

    def run(self, place: WorkerContext) -> None:
        """Import them; a missing module is reported when it is used."""
        place.use_one_thread()
        for name in self.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A copy on a node's shelf."""

    seconds: float
    address: str  # where other nodes can pull it from


@dataclass(frozen=True, slots=True, kw_only=True)
class PullJob:
    """Bring a checkpoint onto the node's shelf, and offer it to other nodes."""

    key: str
    addresses: tuple[str, ...]  # of sources, best first
    files: tuple[SourceFile, ...]
    host: str

    def run(self, place: WorkerContext) -> Pulled:
        """Pull it unless it is there."""
        lease = place.shelf.lease(self.key, [open_source(address) for address in self.addresses], self.files)
        place.keep(lease)
        address = place.peer_server(self.host).offer(self.key, self.files)
        return Pulled(seconds=lease.seconds, address=address)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseJob:
    """Let a checkpoint go; it is cleared when no worker uses it."""

    key: str

    def run(self, place: WorkerContext) -> None:
        """Give it back."""
        place.let_go(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """How long a part took: the model onto the device, the dataset made ready, the inference."""

    start_s: float
    setup_s: float
    seconds: float
    usage: dict[str, float] = field(default_factory=dict)  # of an endpoint, since it was last reported


@dataclass(frozen=True, slots=True, kw_only=True)
class InferJob:
    """Infer one part and keep its outputs."""

    part: Part
    dataset: Dataset
    key: str
    folder: Path
    fingerprint: str
    device: str
    shrink: int = 0

    def run(self, place: WorkerContext) -> Inferred:
        """Model and dataset made ready, samples inferred, outputs on disk."""
        place.use_one_thread()
        model = place.use_only(self.key)
        place.cache.device = self.device
        adapter = open_adapter(self.dataset.adapter)
        adapter.prepare(self.dataset, model, place.cache, self.shrink)
        start = time.monotonic()
        outputs = adapter.infer(self.dataset, model, place.cache, self.part.first, self.part.last, self.shrink)
        Store(self.folder).write("outputs", self.part, self.fingerprint, outputs)
        return Inferred(
            start_s=place.cache.take_spent_s("model"),
            setup_s=place.cache.take_spent_s("dataset"),
            seconds=time.monotonic() - start,
            usage=place.cache.take_usage(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreJob:
    """Score the kept outputs of a part."""

    part: Part
    dataset: Dataset
    folder: Path
    fingerprint: str

    def run(self, place: WorkerContext) -> float:
        """Seconds it took."""
        place.use_one_thread()
        start = time.monotonic()
        store = Store(self.folder)
        outputs = store.read("outputs", self.part)
        dataset = _keep_verdicts(self.dataset, self.folder)
        scores = open_adapter(dataset.adapter).score(dataset, place.cache, outputs, self.part.first)
        store.write("scores", self.part, self.fingerprint, scores)
        return time.monotonic() - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """The finite metrics of a dataset; `problem` describes the others, `samples` are those that caused it."""

    metrics: dict[str, float]
    problem: str = ""
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineJob:
    """Make a dataset's metrics of the scores of its parts."""

    dataset: Dataset
    parts: tuple[Part, ...]
    folder: Path
    fingerprint: str

    def run(self, place: WorkerContext) -> Combined:
        """The metrics, which are kept too unless one of them is no number."""
        store = Store(self.folder)
        scores = [score for part in self.parts for score in store.read("scores", part)]
        metrics = open_adapter(self.dataset.adapter).combine(self.dataset, scores)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        bad = [name for name in metrics if name not in finite and "_stderr" not in name]
        if not bad:
            store.write_metrics(self.parts[0].checkpoint, self.dataset.name, self.fingerprint, finite)
            return Combined(metrics=finite)
        samples = tuple(i for i, score in enumerate(scores) if any(not is_finite(score.get(name)) for name in bad))
        told = ", ".join(map(str, samples[:10])) + (" ..." if len(samples) > 10 else "")
        which = f"samples {told}" if samples else "no sample by itself"
        values = ", ".join(f"{name} is {metrics[name]}" for name in bad)
        return Combined(metrics=finite, problem=f"{values}: {which} gave no finite value", samples=samples)


def is_finite(value: Any) -> bool:
    """Whether a score holds only finite numbers; {"float": "nan"} is how adapters write one that JSON cannot hold."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return "float" not in value and all(map(is_finite, value.values()))
    return all(map(is_finite, value)) if isinstance(value, list) else True


def _keep_verdicts(dataset: Dataset, folder: Path) -> Dataset:
    """Let a judge's verdicts be kept with the run, so that a retry asks only for those that are missing."""
    judge = dataset.settings.get("judge")
    if not isinstance(judge, dict):
        return dataset
    return replace(dataset, settings={**dataset.settings, "judge": {"keep": str(folder / "verdicts"), **judge}})
