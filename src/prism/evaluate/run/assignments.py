"""Jobs made of what the scheduler asks for: what a process needs to know of the run to do them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prism.evaluate.run.jobs import CombineJob, InferJob, PullJob, ReleaseJob, ScoreJob
from prism.evaluate.run.loading.source import SourceFile
from prism.evaluate.schedule import actions
from prism.evaluate.schedule.trials import Dataset, Part

SCORE_TIMEOUT_S = 600.0  # unless a dataset says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint as workers get it: where it lies, which files, and the key of its copies."""

    name: str
    address: str
    key: str
    files: tuple[SourceFile, ...]


class Assignments:
    """Writes jobs for the checkpoints and datasets of a run."""

    def __init__(
        self,
        folder: Path,
        models: dict[str, Model],
        datasets: Sequence[Dataset],
        fingerprint: Callable[[str, str], str],
    ) -> None:
        """`models` may get more entries while the run goes on."""
        self.folder = folder
        self.models = models
        self.fingerprint = fingerprint
        self._datasets = {dataset.name: dataset for dataset in datasets}

    def pull(self, checkpoint: str, host: str, offered: str | None) -> PullJob:
        """Bring a checkpoint to a node, from an address that another node offers or else from storage."""
        model = self.models[checkpoint]
        return PullJob(
            key=model.key,
            addresses=(*([offered] if offered else []), model.address),
            files=model.files,
            host=host,
        )

    def release(self, checkpoint: str) -> ReleaseJob:
        """Let a node's copy go."""
        return ReleaseJob(key=self.models[checkpoint].key)

    def infer(self, part: Part, *, gpus: Sequence[int], shrink: int) -> InferJob:
        """Infer a part on a worker with these GPUs, or on its CPU."""
        return InferJob(
            part=part,
            dataset=self._datasets[part.dataset],
            key=self.models[part.checkpoint].key,
            folder=self.folder,
            fingerprint=self.fingerprint(part.checkpoint, part.dataset),
            device="cuda:0" if gpus else "cpu",
            shrink=shrink,
        )

    def score(self, part: Part) -> ScoreJob:
        """Score a part's outputs."""
        return ScoreJob(
            part=part,
            dataset=self._datasets[part.dataset],
            folder=self.folder,
            fingerprint=self.fingerprint(part.checkpoint, part.dataset),
        )

    def score_limit_s(self, dataset: str) -> float:
        """How long a score may take before it counts as hung."""
        return float(self._datasets[dataset].settings.get("score_timeout_s", SCORE_TIMEOUT_S))

    def combine(self, action: actions.CombineScores) -> CombineJob:
        """Make a dataset's metrics of all its scores."""
        return CombineJob(
            dataset=self._datasets[action.dataset],
            parts=action.parts,
            folder=self.folder,
            fingerprint=self.fingerprint(action.checkpoint, action.dataset),
        )
