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
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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


class Mark(NamedTuple):
    """A report of a trainer: a step, a save, a restore, or the begin or end of a pause."""

    kind: str
    time_s: float  # Unix
    step: int = 0
    what: str = ""


class Span(NamedTuple):
    """What an attempt did for a while, and whose fault it was; times are Unix seconds."""

    attempt: int
    kind: str
    cause: str
    start_s: float
    end_s: float


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The records of one attempt; times are Unix seconds."""

    number: int
    launched_s: float
    ended_s: float | None = None
    reason: str = ""  # why it ended; empty while it runs or if it finished
    over: bool = False  # the run ended with it: done, stopped or failed
    marks: list[Mark] = field(default_factory=list)

    @property
    def resumed_step(self) -> int | None:
        """The step it continued from; None if it made no step."""
        restored = next((mark.step for mark in self.marks if mark.kind == "restored"), None)
        first = next((mark.step - 1 for mark in self.marks if mark.kind == "step"), None)
        return first if restored is None else restored


def read_goodput(run_dirs: Iterable[Path], gpus: int | None = None) -> pl.DataFrame:
    """The spans of all runs; `gpus` of a run are its ranks unless given."""
    rows = [row for run_dir in run_dirs for row in _read_run(run_dir, gpus)]
    return pl.DataFrame(rows, schema=SPANS, orient="row")


def account(attempts: Sequence[Attempt], end_s: float) -> Iterator[Span]:
    """Every second from the first launch to the end of the run, `end_s`, in one span each."""
    for place, attempt in enumerate(attempts):
        later = attempts[place + 1 :]
        next_s = later[0].launched_s if later else end_s
        kept = min((a.resumed_step for a in later if a.resumed_step is not None), default=None)
        before = attempts[place - 1].reason if place else ""
        for kind, cause, start, end in _spans_of(attempt, next_s, kept, before):
            if end > start:
                yield Span(attempt.number, kind, cause, start, end)


def share_of_training(spans: Iterable[Span], from_s: float = -math.inf, to_s: float = math.inf) -> float | None:
    """The goodput of a run, or of a part of its time: work that was kept; None where no trainer reported steps."""
    seconds = {TRAINING: 0.0, OTHER: 0.0}
    whole = 0.0
    for span in spans:
        inside = max(0.0, min(span.end_s, to_s) - max(span.start_s, from_s))
        seconds[span.kind] = seconds.get(span.kind, 0.0) + inside
        whole += inside
    return seconds[TRAINING] / whole if whole > seconds[OTHER] else None


def note_decision(attempts: list[Attempt], moment: float, event: str, reason: str, actions: Sequence[Any]) -> None:
    """Take up a decision of the supervisor: how the attempt before it ended, and the attempt that it launched."""
    names = [action["action"] for action in actions]
    if attempts:
        _note_end(attempts[-1], event, reason, names, moment)
        _note_finish(attempts[-1], actions)
    launches = [action for action in actions if action["action"] == "Launch"]
    attempts += [Attempt(number=int(launch["attempt"]), launched_s=moment) for launch in launches]


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
    for span in account(attempts, end_s):
        yield (str(run_dir), *span, (span.end_s - span.start_s) * count)


def _spans_of(
    attempt: Attempt, next_s: float, kept_step: int | None, before: str
) -> Iterator[tuple[str, str, float, float]]:
    """Kind, cause, start, end: without gaps from the launch to the next one."""
    ended_s = min(next_s, attempt.ended_s if attempt.ended_s is not None else next_s)
    marks = [m for m in _first_of_each(attempt.marks) if attempt.launched_s <= m.time_s <= ended_s]
    first_s = marks[0].time_s if marks else ended_s
    if not attempt.marks and attempt.reason in ("", causes.PREEMPTED):
        yield OTHER, "", attempt.launched_s, ended_s
    else:
        yield (RESTART, before, attempt.launched_s, first_s) if before else (STARTUP, "", attempt.launched_s, first_s)
    yield from _work(attempt, marks, kept_step)
    if marks:
        last = HANG if attempt.reason == causes.HANG else LOST if attempt.reason else TRAINING
        yield last, attempt.reason if last != TRAINING else "", marks[-1].time_s, ended_s
    if next_s > ended_s and not attempt.over:  # a run that is over holds no GPU until it is started again
        yield RESTART, attempt.reason, ended_s, next_s


def _work(attempt: Attempt, marks: list[Mark], kept_step: int | None) -> Iterator[tuple[str, str, float, float]]:
    """Divide the time between steps: kept, lost, stalled by a save, evaluation, or slower than usual."""
    gaps = [b.time_s - a.time_s for a, b in itertools.pairwise(marks)]
    pauses = _pauses(attempt.marks)
    begins = [start for _, start, _ in pauses]
    saved = {mark.step for mark in attempt.marks if mark.kind == "saved"}
    whole = statistics.median(gaps) if gaps else 0.0
    for place, (a, b) in enumerate(itertools.pairwise(marks)):
        start, end = a.time_s, b.time_s
        for pause_kind, pause_start, pause_end in pauses[bisect_left(begins, start) : bisect_right(begins, end)]:
            if pause_end <= b.time_s:
                yield pause_kind, "", pause_start, pause_end
                end -= pause_end - pause_start  # the gap without the pause
        lost = kept_step is not None and b.step > kept_step
        kind, cause = (LOST, attempt.reason) if lost else (TRAINING, "")
        if a.step in saved:
            usual = statistics.median(gaps[max(0, place - _USUAL_STEPS // 2) : place + _USUAL_STEPS // 2 + 1])
            extra = max(0.0, (end - start) - usual)
            if extra > 0.1 * usual:
                yield STALL, "", start, start + extra
                start += extra
        if start == a.time_s and attempt.reason == causes.SLOW and (end - start) > whole:
            yield SLOW, attempt.reason, start, start + (end - start) - whole
            start = end - whole
        yield kind, cause, start, end


def _first_of_each(marks: list[Mark]) -> list[Mark]:
    """Keep one report per step: some trainers report the loss of a step separately."""
    steps = [mark for mark in marks if mark.kind == "step"]
    before = [None, *(mark.step for mark in steps)]
    return [mark for mark, last in zip(steps, before, strict=False) if mark.step != last]


def _pauses(marks: list[Mark]) -> list[tuple[str, float, float]]:
    """Kind, start, end."""
    found, since, kind = [], None, PAUSE
    for mark in marks:
        if mark.kind == "paused":
            since, kind = mark.time_s, STALL if mark.what == STORAGE else PAUSE
        elif mark.kind == "resumed" and since is not None:
            found.append((kind, since, mark.time_s))
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
            moment, event = float(line["time"]), line["event"]
            if not math.isfinite(moment):
                raise ValueError
            verdict = event.get("verdict") or {}
            reason = str((verdict.get("cause") or {}).get("name") or verdict.get("reason", ""))
            note_decision(attempts, moment, event["kind"], reason, line["actions"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise BadFileError(f"{path} line {number}: not a decision of a supervisor; was the file edited?") from None
        end_s = max(end_s, moment)
    for attempt in attempts:
        steps = attempt_dir(run_dir, attempt.number) / STEPS_FILE
        lines = _json_lines(steps) if steps.exists() else iter(())
        attempt.marks = [mark for _, line in lines if (mark := _read_mark(line)) is not None]
        end_s = max([end_s, *(mark.time_s for mark in attempt.marks[-1:])])
    return attempts, end_s


def _note_end(attempt: Attempt, event: str, reason: str, actions: list[str], moment: float) -> None:
    match event:
        case "Exited":
            attempt.ended_s = moment
            if not attempt.reason and "Finish" not in actions:
                attempt.reason = causes.PREEMPTED if "Launch" in actions else causes.UNKNOWN
        case "Explained" if attempt.reason in ("", causes.UNKNOWN):
            attempt.reason = reason
        case "Tick" if "TakeStacks" in actions:
            attempt.reason = causes.HANG
        case "StepDone" if "Kill" in actions:
            attempt.reason = causes.LOSS_SPIKE


def _note_finish(attempt: Attempt, actions: Sequence[Any]) -> None:
    for action in actions:
        if action["action"] == "Finish":
            attempt.over = True
            attempt.reason = attempt.reason or ("Stopped" if action.get("outcome") == "stopped" else "")


def _read_mark(line: dict[str, Any]) -> Mark | None:
    """A report of the trainer; None for a line without a time, a kind or a step."""
    time_s, kind, step = line.get("time"), line.get("kind"), line.get("step", 0)
    if not (isinstance(time_s, int | float) and math.isfinite(time_s) and isinstance(kind, str)):
        return None
    if kind in _WITH_STEP and not (isinstance(step, int) and "step" in line):
        return None
    return Mark(kind, float(time_s), step if isinstance(step, int) else 0, str(line.get("what", "")))


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
