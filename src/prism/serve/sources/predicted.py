"""Expected timelines: those that `prism emulate`, `simulate` and `scenario` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prism.errors import BadFileError
from prism.serve.folder import Folder
from prism.serve.sources.place import Place, read_object

EMULATION_FILE = "emulation.json"
TRUTH_FILE = "truth.json"
SIMULATION_FILE = "critical_path.parquet"

PredictionKind = Literal["emulation", "simulation", "scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedJob:
    """One job of a prediction; `endpoint_of_rank` is empty where it has no addresses."""

    id: str
    endpoint_of_rank: Mapping[int, str]
    num_ranks: int
    step_ns: tuple[tuple[int, int], ...] = ()  # start and end of each step, where known without the timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One prediction; `document` is an emulation's own report."""

    place: str
    kind: PredictionKind
    timeline: str
    jobs: tuple[PredictedJob, ...]  # empty: the jobs are those of the timeline
    document: Mapping[str, Any]
    updated_ns: int


def read_emulation(folder: Folder, place: Place) -> Predicted:
    """Read an emulation; its timeline has one job."""
    document = read_object(folder, place.path_of(EMULATION_FILE))
    if not isinstance(document.get("world_size"), int):
        raise BadFileError(f"{place.path_of(EMULATION_FILE)}: not an emulation, 'world_size' is missing")
    return _predicted(place, "emulation", "timeline.parquet", EMULATION_FILE, document=document)


def read_simulation(folder: Folder, place: Place) -> Predicted:
    """A solved graph, which has nothing but its spans."""
    return _predicted(place, "simulation", "spans.parquet", SIMULATION_FILE)


def read_scenario(folder: Folder, place: Place) -> Predicted:
    """Read a scenario's truth: which rank sits behind which address."""
    path = place.path_of(TRUTH_FILE)
    document = read_object(folder, path)
    try:
        jobs = tuple(
            PredictedJob(
                id=str(job["id"]),
                endpoint_of_rank={int(rank["rank"]): str(rank["endpoint"]) for rank in job["ranks"]},
                num_ranks=int(job["gpus"]),
                step_ns=tuple((int(step["start_ns"]), int(step["end_ns"])) for step in job["steps"]),
            )
            for job in document["jobs"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadFileError(f"{path}: not the truth of a scenario ({error!r})") from None
    return _predicted(place, "scenario", "spans.parquet", TRUTH_FILE, jobs=jobs)


def _predicted(
    place: Place,
    kind: PredictionKind,
    timeline: str,
    marker: str,
    *,
    jobs: tuple[PredictedJob, ...] = (),
    document: Mapping[str, Any] | None = None,
) -> Predicted:
    return Predicted(
        place=place.path,
        kind=kind,
        timeline=place.path_of(timeline),
        jobs=jobs,
        document=document or {},
        updated_ns=place.files[marker].mtime_ns,
    )
