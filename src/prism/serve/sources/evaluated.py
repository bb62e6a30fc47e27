"""What `prism evaluate --output` writes, while it runs and at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from prism.errors import BadFileError
from prism.records.shape import Shape, columns
from prism.serve.folder import Folder
from prism.serve.shapes.evaluation import Progress
from prism.serve.sources.place import Place, read_object

RESULTS_FILE = "results.json"
PROGRESS_FILE = "progress.json"
LEADERBOARD_FILE = "leaderboard.csv"
TRIALS_FILES = ("trials.parquet", "trials.jsonl")
BESIDE = (RESULTS_FILE, PROGRESS_FILE, LEADERBOARD_FILE, *TRIALS_FILES)
_MOST_BYTES = 256 << 20

PHASES = Shape(
    name="trials",
    required=columns(
        {
            "trial": pl.String,
            "checkpoint": pl.String,
            "step": pl.Int64,
            "dataset": pl.String,
            "node": pl.String,
            "worker": pl.String,
            "phase": pl.String,  # load, infer or score
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "state": pl.String,
            "attempt": pl.Int64,
        }
    ),
    # Loading a checkpoint belongs to no trial and no dataset.
    nullable=frozenset({"trial", "dataset", "step", "node", "worker", "state", "attempt"}),
)
LEADERBOARD = Shape(
    name="leaderboard",
    required=columns(
        {
            "checkpoint": pl.String,
            "step": pl.Int64,
            "dataset": pl.String,
            "metric": pl.String,
            "value": pl.Float64,
        }
    ),
    nullable=frozenset({"step", "value"}),
)
SCORES = pl.Schema({**LEADERBOARD.required, "higher_is_better": pl.Boolean()})  # null where nothing says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One evaluation."""

    place: str
    progress: Progress
    phases: pl.DataFrame  # PHASES
    scores: pl.DataFrame  # SCORES
    regressions: tuple[str, ...]
    makespan_s: float | None
    lower_bound_s: float | None
    updated_ns: int
    broken: str = ""  # why its results cannot be read, where the rest of it can


def read_evaluated(folder: Folder, place: Place) -> Evaluated:
    """Read whatever of an evaluation is there yet."""
    results, broken = _read_results(folder, place)
    progress = read_object(folder, place.path_of(PROGRESS_FILE)) if PROGRESS_FILE in place.files else {}
    phases = _read_phases(folder, place)
    try:
        found = _read_progress(progress) if progress else _ended(results, phases)
        return Evaluated(
            place=place.path,
            progress=found,
            phases=phases,
            scores=_read_scores(folder, place, results),
            regressions=tuple(_say(part) for part in results.get("regressions", ())),
            makespan_s=_number(results.get("makespan_s")),
            lower_bound_s=_number(results.get("lower_bound_s")),
            updated_ns=max(file.mtime_ns for name, file in place.files.items() if name in BESIDE),
            broken=broken,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFileError(f"{place.path_of(RESULTS_FILE)}: not an evaluation ({error!r})") from None


def _read_results(folder: Folder, place: Place) -> tuple[dict[str, Any], str]:
    """The results, and why they cannot be read where other files still tell of the evaluation."""
    if RESULTS_FILE not in place.files:
        return {}, ""
    try:
        return read_object(folder, place.path_of(RESULTS_FILE)), ""
    except BadFileError as error:
        if not any(name in place.files for name in BESIDE[1:]):
            raise
        return {}, str(error)


def _read_progress(document: Mapping[str, Any]) -> Progress:
    counts = document.get("trials", document)
    counts = counts if isinstance(counts, Mapping) else document
    return Progress(
        state=str(document.get("state", "unknown")),
        done=_first(counts, "trials_done", "done"),
        running=_first(counts, "trials_running", "running"),
        waiting=_first(counts, "trials_waiting", "waiting", "scores_waiting"),
        failed=_first(counts, "trials_failed", "failed"),
        gpus_busy=_whole(document.get("gpus_busy")),
        gpus=_whole(document.get("gpus")),
        samples=_whole(document.get("samples")),
        scored=_whole(document.get("scored")),
        time_left_s=_number(document.get("time_left_s")),
    )


def _first(counts: Mapping[str, Any], *names: str) -> int:
    """A count by the first of its names that is there."""
    return next((int(counts[name]) for name in names if isinstance(counts.get(name), (int, float))), 0)


def _ended(results: Mapping[str, Any], phases: pl.DataFrame) -> Progress:
    """An evaluation that left only its results is over."""
    trials = results.get("trials")
    done = trials if isinstance(trials, int) else phases["trial"].drop_nulls().n_unique()
    return Progress(state="done", done=done, time_left_s=0.0)


def _read_phases(folder: Folder, place: Place) -> pl.DataFrame:
    name = next((name for name in TRIALS_FILES if name in place.files), None)
    if name is None:
        return PHASES.empty()
    data = folder.read_whole(place.path_of(name), most=_MOST_BYTES)
    try:
        if name.endswith(".parquet"):
            frame = pl.read_parquet(data)
        else:
            whole = data[: data.rfind(b"\n") + 1]  # the last line may be being written
            rows = [json.loads(line) for line in whole.splitlines() if line.strip()]
            frame = pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else PHASES.empty()
    except (pl.exceptions.PolarsError, ValueError, RecursionError) as error:
        raise BadFileError(f"{place.path_of(name)}: not a table of trials ({str(error).splitlines()[0]})") from None
    return PHASES.conform(frame, place.path_of(name)).sort("start_ns")


def _read_scores(folder: Folder, place: Place, results: Mapping[str, Any]) -> pl.DataFrame:
    """The leaderboard file, or where there is none yet the results by checkpoint, dataset and metric."""
    path = place.path_of(LEADERBOARD_FILE)
    if LEADERBOARD_FILE in place.files:
        data = folder.read_whole(path, most=_MOST_BYTES)
        try:
            frame = pl.read_csv(data, infer_schema=False) if data.strip() else LEADERBOARD.empty()
            scores = LEADERBOARD.conform(frame, path, row_word="line", first_row=2)
            said = frame["higher_is_better"] if "higher_is_better" in frame.columns else None
            return _add_directions(scores, results, said)
        except pl.exceptions.PolarsError as error:
            raise BadFileError(f"{path}: not a CSV table ({str(error).splitlines()[0]})") from None
    rows = [
        (checkpoint, None, dataset, metric, _number(value))
        for checkpoint, datasets in results.get("results", {}).items()
        for dataset, metrics in datasets.items()
        for metric, value in metrics.items()
    ]
    return _add_directions(pl.DataFrame(rows, schema=LEADERBOARD.required, orient="row"), results, None)


def _add_directions(scores: pl.DataFrame, results: Mapping[str, Any], said: pl.Series | None) -> pl.DataFrame:
    """Whether more is better, as the leaderboard or the results say; null where neither does."""
    if said is not None and len(said) == len(scores):
        words = [{"true": True, "false": False}.get(str(word).lower()) for word in said]
    else:
        datasets = results.get("datasets")
        known = datasets if isinstance(datasets, Mapping) else {}
        words = [_direction(known.get(d), m) for d, m in scores.select("dataset", "metric").iter_rows()]
    return scores.select(*LEADERBOARD.required).with_columns(pl.Series("higher_is_better", words, dtype=pl.Boolean()))


def _direction(dataset: object, metric: str) -> bool | None:
    directions = dataset.get("higher_is_better") if isinstance(dataset, Mapping) else None
    if not isinstance(directions, Mapping):
        return None
    said = directions.get(metric, directions.get(metric.partition(",")[0]))
    return said if isinstance(said, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _say(part: object) -> str:
    """A regression in a line: its own words, or its fields."""
    if isinstance(part, Mapping):
        return ", ".join(f"{key} {value}" for key, value in part.items())
    return str(part)
