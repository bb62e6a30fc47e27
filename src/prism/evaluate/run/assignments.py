"""The checkpoints and datasets of a run: what is kept of them, and duties made from the actions of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prism.evaluate.run.engines.engine import WorkerSpec
from prism.evaluate.run.fingerprint import make_fingerprint
from prism.evaluate.run.jobs import CombineJob, InferJob, PullJob, ReleaseJob, ScoreJob
from prism.evaluate.run.loading.source import SourceFile
from prism.evaluate.run.node_states import Duty
from prism.evaluate.run.store import Store
from prism.evaluate.schedule import actions
from prism.evaluate.schedule.trials import Dataset, Kept, Part, Trial

_SCORE_TIMEOUT_S = 600.0  # unless a dataset says otherwise
_PATIENCE = 20.0  # times the expected seconds, after which an inference counts as hung
_LEAST_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint as workers get it: where it lies, which files, and the key of its copies."""

    address: str
    key: str
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignments:
    """What is evaluated in a folder; `models` may get more entries while the run goes on."""

    folder: Path
    models: Mapping[str, Model]
    datasets: Mapping[str, Dataset]

    def fingerprint(self, checkpoint: str, dataset: str) -> str:
        """What the results of a checkpoint on a dataset follow from."""
        chosen = self.datasets[dataset]
        return make_fingerprint(
            self.models[checkpoint].key, chosen.adapter, chosen.task, chosen.identity, chosen.settings
        )

    def find_kept(self, checkpoint: str) -> Kept:
        """What an earlier run has left of a checkpoint and is still valid."""
        store = Store(self.folder)
        words = [(dataset, self.fingerprint(checkpoint, name)) for name, dataset in self.datasets.items()]
        return Kept(
            inferred=tuple(p for dataset, word in words for p in store.kept("outputs", checkpoint, dataset, word)),
            scored=tuple(p for dataset, word in words for p in store.kept("scores", checkpoint, dataset, word)),
        )

    def load(self, action: actions.LoadCheckpoint, host: str, offered: str | None) -> Duty:
        """Bring a checkpoint to a node, from an address that another node offers or else from storage."""
        model = self.models[action.checkpoint]
        addresses = (offered, model.address) if offered else (model.address,)
        job = PullJob(key=model.key, addresses=addresses, files=model.files, host=host)
        return Duty(kind="load", job=job, node=action.node, checkpoint=action.checkpoint)

    def release(self, action: actions.ReleaseCheckpoint) -> Duty:
        """Let a node's copy go."""
        return Duty(kind="release", job=ReleaseJob(key=self.models[action.checkpoint].key), node=action.node)

    def infer(self, part: Part, trial: Trial, worker: WorkerSpec) -> Duty:
        """Infer a part on a worker's GPUs, or on its CPU."""
        job = InferJob(
            part=part,
            dataset=self.datasets[part.dataset],
            key=self.models[part.checkpoint].key,
            folder=self.folder,
            fingerprint=self.fingerprint(part.checkpoint, part.dataset),
            device="cuda:0" if worker.gpus else "cpu",
            shrink=trial.shrink,
        )
        limit_s = max(_LEAST_PATIENCE_S, _PATIENCE * trial.expected_s)
        return Duty(kind="infer", job=job, part=part, node=worker.node, limit_s=limit_s)

    def score(self, action: actions.StartScore) -> Duty:
        """Score a part's outputs."""
        part, dataset = action.part, self.datasets[action.part.dataset]
        fingerprint = self.fingerprint(part.checkpoint, part.dataset)
        job = ScoreJob(part=part, dataset=dataset, folder=self.folder, fingerprint=fingerprint)
        limit_s = float(dataset.settings.get("score_timeout_s", _SCORE_TIMEOUT_S))
        return Duty(kind="score", job=job, part=part, node=action.node, limit_s=limit_s, attempt=action.attempt)

    def combine(self, action: actions.CombineScores) -> Duty:
        """Make a dataset's metrics of all its scores."""
        dataset, fingerprint = self.datasets[action.dataset], self.fingerprint(action.checkpoint, action.dataset)
        job = CombineJob(dataset=dataset, parts=action.parts, folder=self.folder, fingerprint=fingerprint)
        return Duty(kind="combine", job=job, part=action.parts[0], limit_s=_SCORE_TIMEOUT_S)
