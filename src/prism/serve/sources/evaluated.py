"""What `prism evaluate --output` writes, while it runs and at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import polars as pl

from prism.errors import BadFileError, InputError
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
Read = TypeVar("Read")

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
    broken: str = ""  # which of its files cannot be read and why, where others can


def read_evaluated(folder: Folder, place: Place) -> Evaluated:
    """Read the files of an evaluation that exist so far; a file that cannot be read does not hide the others."""
    broken: dict[str, InputError] = {}

    def read(name: str, reader: Callable[[Folder, str], Read], nothing: Read) -> Read:
        if name not in place.files:
            return nothing
        try:
            return reader(folder, place.path_of(name))
        except InputError as error:
            broken[name] = error
            return nothing

    trials_file = next((name for name in TRIALS_FILES if name in place.files), "")
    results: dict[str, Any] = read(RESULTS_FILE, _read_results, {})
    progress = read(PROGRESS_FILE, _read_progress, None)
    phases = read(trials_file, _read_phases, PHASES.empty())
    listed = read(LEADERBOARD_FILE, _read_leaderboard, None)
    if broken.keys() >= place.files.keys() & set(BESIDE):
        raise next(iter(broken.values()))
    return Evaluated(
        place=place.path,
        progress=progress or _ended(results, phases),
        phases=phases,
        scores=_add_directions(_list_scores(results) if listed is None else listed, results),
        regressions=tuple(_say(part) for part in results.get("regressions", ())),
        makespan_s=_number(results.get("makespan_s")),
        lower_bound_s=_number(results.get("lower_bound_s")),
        updated_ns=max(file.mtime_ns for name, file in place.files.items() if name in BESIDE),
        broken="; ".join(map(str, broken.values())),
    )


def _read_results(folder: Folder, path: str) -> dict[str, Any]:
    """The results; raises if their parts have the wrong types."""
    document = read_object(folder, path)
    try:
        _list_scores(document)
        tuple(document.get("regressions", ()))
    except (TypeError, AttributeError) as error:
        raise BadFileError(f"{path}: not an evaluation ({error!r})") from None
    return document


def _read_progress(folder: Folder, path: str) -> Progress:
    document = read_object(folder, path)
    try:
        return _describe_progress(document)
    except (ValueError, OverflowError) as error:
        raise BadFileError(f"{path}: not the progress of an evaluation ({error})") from None


def _describe_progress(document: Mapping[str, Any]) -> Progress:
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
    """A count under the first of its names that the document has."""
    return next((int(counts[name]) for name in names if isinstance(counts.get(name), (int, float))), 0)


def _ended(results: Mapping[str, Any], phases: pl.DataFrame) -> Progress:
    """The progress of an evaluation of which only results exist: it is over."""
    trials = results.get("trials")
    done = trials if isinstance(trials, int) else phases["trial"].drop_nulls().n_unique()
    return Progress(state="done", done=done, time_left_s=0.0)


def _read_phases(folder: Folder, path: str) -> pl.DataFrame:
    data = folder.read_whole(path, most=_MOST_BYTES)
    try:
        if path.endswith(".parquet"):
            frame = pl.read_parquet(data)
        else:
            whole = data[: data.rfind(b"\n") + 1]  # the last line may be being written
            rows = [json.loads(line) for line in whole.splitlines() if line.strip()]
            frame = pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else PHASES.empty()
    except (pl.exceptions.PolarsError, ValueError, TypeError, RecursionError) as error:
        raise BadFileError(f"{path}: not a table of trials ({str(error).splitlines()[0]})") from None
    return PHASES.conform(frame, path).sort("start_ns")


def _read_leaderboard(folder: Folder, path: str) -> pl.DataFrame:
    """The leaderboard, with `higher_is_better` where it has that column."""
    data = folder.read_whole(path, most=_MOST_BYTES)
    try:
        frame = pl.read_csv(data, infer_schema=False) if data.strip() else LEADERBOARD.empty()
        scores = LEADERBOARD.conform(frame, path, row_word="line", first_row=2).select(*LEADERBOARD.required)
    except pl.exceptions.PolarsError as error:
        raise BadFileError(f"{path}: not a CSV table ({str(error).splitlines()[0]})") from None
    if "higher_is_better" not in frame.columns or len(frame) != len(scores):
        return scores
    words = [{"true": True, "false": False}.get(str(word).lower()) for word in frame["higher_is_better"]]
    return scores.with_columns(pl.Series("higher_is_better", words, dtype=pl.Boolean()))


def _list_scores(results: Mapping[str, Any]) -> pl.DataFrame:
    """Results by checkpoint, dataset and metric, as rows; they contain no steps."""
    rows = [
        (checkpoint, None, dataset, metric, _number(value))
        for checkpoint, datasets in results.get("results", {}).items()
        for dataset, metrics in datasets.items()
        for metric, value in metrics.items()
    ]
    return pl.DataFrame(rows, schema=LEADERBOARD.required, orient="row")


def _add_directions(scores: pl.DataFrame, results: Mapping[str, Any]) -> pl.DataFrame:
    """Whether more is better, by the leaderboard or else by the results; null if neither says."""
    if "higher_is_better" in scores.columns:
        return scores
    datasets = results.get("datasets")
    known = datasets if isinstance(datasets, Mapping) else {}
    words = [_direction(known.get(d), m) for d, m in scores.select("dataset", "metric").iter_rows()]
    return scores.with_columns(pl.Series("higher_is_better", words, dtype=pl.Boolean()))


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
    """A regression in one line: its own text, or else its fields."""
    if isinstance(part, Mapping):
        return ", ".join(f"{key} {value}" for key, value in part.items())
    return str(part)
