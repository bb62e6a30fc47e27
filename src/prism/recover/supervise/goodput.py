"""Where every GPU-second of supervised runs went: turns run folders into time spans that add up to the total.

Between two steps lies the work of the second one. It was training if the run still stands on it at the end, and lost
work if a later attempt began before it. What lies between attempts belongs to the failure that ended the first; from
the end of a run until it is taken up again nothing is counted.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from prism.errors import BadFileError
from prism.records import causes
from prism.recover.progress import BEATS, STEPS_FILE, STORAGE, attempt_dir
from prism.recover.supervise.journal import DECISIONS_JSON_FILE

TRAINING, LOST, RESTART, STALL = "training", "lost work", "restart", "checkpoint stall"
HANG, SLOW, STARTUP, PAUSE, OTHER = "hang", "slow host", "startup", "evaluation", "not reported"
KINDS = (TRAINING, LOST, RESTART, STALL, HANG, SLOW, STARTUP, PAUSE, OTHER)
SPANS = pl.Schema(
    {
        "run": pl.String,
        "attempt": pl.Int64,
        "kind": pl.String,
        "cause": pl.String,
        "start_s": pl.Float64,
        "end_s": pl.Float64,
        "gpu_seconds": pl.Float64,
    }
)
_USUAL_STEPS = 31  # steps around a step, from which its usual duration is taken
_WITH_STEP = ("step", "restored", "saved")  # kinds of reports that name a step


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The records of one attempt; times are Unix seconds."""

    number: int
    launched_s: float
    ended_s: float | None = None
    reason: str = ""  # why it ended; empty while it runs or if it finished
    over: bool = False  # the run ended with it: done, stopped or failed
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def resumed_step(self) -> int | None:
        """The step it continued from; None if it made no step."""
        restored = [int(r["step"]) for r in self.reports if r["kind"] == "restored"]
        steps = [int(r["step"]) for r in self.reports if r["kind"] == "step"]
        return restored[0] if restored else steps[0] - 1 if steps else None


def read_goodput(run_dirs: Iterable[Path], gpus: int | None = None) -> pl.DataFrame:
    """The spans of all runs; `gpus` of a run are its ranks unless given."""
    rows = [row for run_dir in run_dirs for row in _read_run(run_dir, gpus)]
    return pl.DataFrame(rows, schema=SPANS, orient="row")


def total_hours(spans: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """GPU-hours and their share, by any of run, week, kind and cause."""
    week = pl.from_epoch(pl.col("start_s").cast(pl.Int64), time_unit="s").dt.strftime("%G-W%V").alias("week")
    hours = spans.with_columns(week).group_by(keys, maintain_order=True).agg(pl.col("gpu_seconds").sum() / 3600.0)
    whole = float(spans["gpu_seconds"].sum()) / 3600.0
    named = hours.rename({"gpu_seconds": "gpu_hours"})
    share = pl.col("gpu_hours") / whole if whole else pl.lit(0.0)
    return named.with_columns(share.alias("share")).sort(keys)


def write_metrics(spans: pl.DataFrame) -> str:
    """The totals as Prometheus text, for a textfile collector."""
    lines = [
        "# HELP prism_gpu_seconds GPU time of supervised runs, by what it went into and why.",
        "# TYPE prism_gpu_seconds gauge",
    ]
    for row in spans.group_by("run", "kind", "cause", maintain_order=True).agg(pl.col("gpu_seconds").sum()).to_dicts():
        labels = ",".join(f'{name}="{_escape(str(row[name]))}"' for name in ("run", "kind", "cause"))
        lines.append(f"prism_gpu_seconds{{{labels}}} {row['gpu_seconds']:.3f}")
    return "\n".join(lines) + "\n"


def _read_run(run_dir: Path, gpus: int | None) -> Iterator[tuple[Any, ...]]:
    attempts, end_s = _read_attempts(run_dir)
    count = gpus or max([1, *(len(list(attempt_dir(run_dir, a.number).glob(BEATS))) for a in attempts)])
    for place, attempt in enumerate(attempts):
        later = attempts[place + 1 :]
        next_s = later[0].launched_s if later else end_s
        kept = min((a.resumed_step for a in later if a.resumed_step is not None), default=None)
        before = attempts[place - 1].reason if place else ""
        for kind, cause, start, end in _spans_of(attempt, next_s, kept, before):
            if end > start:
                yield (str(run_dir), attempt.number, kind, cause, start, end, (end - start) * count)


def _spans_of(
    attempt: Attempt, next_s: float, kept_step: int | None, before: str
) -> Iterator[tuple[str, str, float, float]]:
    """Kind, cause, start, end: without gaps from the launch to the next one."""
    ended_s = min(next_s, attempt.ended_s if attempt.ended_s is not None else next_s)
    marks = [r for r in _first_of_each(attempt.reports) if attempt.launched_s <= r["time"] <= ended_s]
    first_s = marks[0]["time"] if marks else ended_s
    if not attempt.reports and attempt.reason in ("", causes.PREEMPTED):
        yield OTHER, "", attempt.launched_s, ended_s
    else:
        yield (RESTART, before, attempt.launched_s, first_s) if before else (STARTUP, "", attempt.launched_s, first_s)
    yield from _work(attempt, marks, kept_step)
    if marks:
        last = HANG if attempt.reason == causes.HANG else LOST if attempt.reason else TRAINING
        yield last, attempt.reason if last != TRAINING else "", marks[-1]["time"], ended_s
    if next_s > ended_s and not attempt.over:  # a run that is over holds no GPU until it is started again
        yield RESTART, attempt.reason, ended_s, next_s


def _work(
    attempt: Attempt, marks: list[dict[str, Any]], kept_step: int | None
) -> Iterator[tuple[str, str, float, float]]:
    """Divide the time between steps: kept, lost, stalled by a save, evaluation, or slower than usual."""
    gaps = [b["time"] - a["time"] for a, b in itertools.pairwise(marks)]
    pauses = _pauses(attempt.reports)
    saved = {int(r["step"]) for r in attempt.reports if r["kind"] == "saved"}
    whole = statistics.median(gaps) if gaps else 0.0
    for place, (a, b) in enumerate(itertools.pairwise(marks)):
        start, end = a["time"], b["time"]
        for pause_kind, pause_start, pause_end in pauses:
            if start <= pause_start and pause_end <= end:
                yield pause_kind, "", pause_start, pause_end
                end -= pause_end - pause_start  # the gap without the pause
        lost = kept_step is not None and int(b["step"]) > kept_step
        kind, cause = (LOST, attempt.reason) if lost else (TRAINING, "")
        usual = statistics.median(gaps[max(0, place - _USUAL_STEPS // 2) : place + _USUAL_STEPS // 2 + 1])
        extra = max(0.0, (end - start) - usual)
        if int(a["step"]) in saved and extra > 0.1 * usual:
            yield STALL, "", start, start + extra
            start += extra
        elif attempt.reason == causes.SLOW and (end - start) > whole:
            yield SLOW, attempt.reason, start, start + (end - start) - whole
            start = end - whole
        yield kind, cause, start, end


def _first_of_each(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep one report per step: some trainers report the loss of a step separately."""
    steps = [report for report in reports if report["kind"] == "step"]
    before = [None, *(report["step"] for report in steps)]
    return [report for report, last in zip(steps, before, strict=False) if report["step"] != last]


def _pauses(reports: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """Kind, start, end."""
    found, since, kind = [], None, PAUSE
    for report in reports:
        if report["kind"] == "paused":
            since, kind = float(report["time"]), STALL if report.get("what") == STORAGE else PAUSE
        elif report["kind"] == "resumed" and since is not None:
            found.append((kind, since, float(report["time"])))
            since = None
    return found


def _read_attempts(run_dir: Path) -> tuple[list[Attempt], float]:
    """The attempts of a run, from its decisions, and when the run ended or last reported."""
    path = run_dir / DECISIONS_JSON_FILE
    if not path.exists():
        raise BadFileError(f"{path}: no such folder; name the folder of a supervised run, as given to --run-dir")
    attempts: list[Attempt] = []
    end_s = 0.0
    for number, line in _json_lines(path):
        try:
            moment = float(line["time"])
            if not math.isfinite(moment):
                raise ValueError
            event, names = line["event"], [action["action"] for action in line["actions"]]
            if attempts:
                _note_end(attempts[-1], event, names, moment)
                _note_finish(attempts[-1], line["actions"])
            launches = [action for action in line["actions"] if action["action"] == "Launch"]
            attempts += [Attempt(number=int(launch["attempt"]), launched_s=moment) for launch in launches]
        except (KeyError, TypeError, ValueError):
            raise BadFileError(f"{path} line {number}: not a decision of a supervisor; was the file edited?") from None
        end_s = max(end_s, moment)
    for attempt in attempts:
        steps = attempt_dir(run_dir, attempt.number) / STEPS_FILE
        attempt.reports = [line for _, line in _json_lines(steps) if _is_report(line)] if steps.exists() else []
        end_s = max([end_s, *(float(report["time"]) for report in attempt.reports[-1:])])
    return attempts, end_s


def _note_end(attempt: Attempt, event: dict[str, Any], actions: list[str], moment: float) -> None:
    match event["kind"]:
        case "Exited":
            attempt.ended_s = moment
            if not attempt.reason and "Finish" not in actions:
                attempt.reason = causes.PREEMPTED if "Launch" in actions else causes.UNKNOWN
        case "Explained" if attempt.reason in ("", causes.UNKNOWN):
            verdict = event["verdict"]
            attempt.reason = str((verdict.get("cause") or {}).get("name") or verdict["reason"])
        case "Tick" if "TakeStacks" in actions:
            attempt.reason = causes.HANG
        case "StepDone" if "Kill" in actions:
            attempt.reason = causes.LOSS_SPIKE


def _note_finish(attempt: Attempt, actions: list[dict[str, Any]]) -> None:
    for action in actions:
        if action["action"] == "Finish":
            attempt.over = True
            attempt.reason = attempt.reason or ("Stopped" if action.get("outcome") == "stopped" else "")


def _is_report(line: dict[str, Any]) -> bool:
    """The trainer's reports, without lines that lack a time, kind or step."""
    time, kind = line.get("time"), line.get("kind")
    timed = isinstance(time, int | float) and math.isfinite(time) and isinstance(kind, str)
    return timed and (kind not in _WITH_STEP or isinstance(line.get("step"), int))


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                found = json.loads(line)
            except ValueError:
                continue  # a line that was cut off by a full disk or a kill
            if isinstance(found, dict):
                yield number, found


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
