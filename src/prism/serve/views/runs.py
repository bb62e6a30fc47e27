"""A supervised run as a page: its story, its losses, and marks on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from prism.recover.supervise.events import CheckpointBroken, Restored, Saved, SaveFailed, StepDone
from prism.serve.shapes.runs import Chapter, InvestigationRow, LossPoint, Mark, RunDocument, RunRow, Tone
from prism.serve.snapshot import Snapshot
from prism.serve.sources.printed import Printed, say_in_a_line
from prism.serve.sources.supervised import Decision, Supervised
from prism.serve.views.jobs import judge_run, key_of

_MOST_POINTS = 2_000


def describe_run(snapshot: Snapshot, key: str) -> RunDocument | None:
    """The page of one run."""
    run = next((run for run in snapshot.all_of(Supervised) if key_of(run.place, "run") == key), None)
    if run is None:
        return None
    losses = [
        LossPoint(attempt=r.attempt, step=r.event.step, time_s=r.time_s, loss=_finite(r.event.loss))
        for r in run.reports
        if isinstance(r.event, StepDone)
    ]
    stride = max(1, math.ceil(len(losses) / _MOST_POINTS))
    # The last point of each attempt stays: it shows where the attempt ended.
    kept = [
        point
        for number, point in enumerate(losses)
        if number % stride == 0
        or point.loss is None
        or losses[number + 1 : number + 2] == []
        or losses[number + 1].attempt != point.attempt
    ]
    return RunDocument(
        run=describe_run_row(run),
        story=tuple(tell_story(run)),
        losses=tuple(kept),
        losses_left_out=len(losses) - len(kept),
        marks=tuple(sorted(_list_marks(run), key=lambda mark: mark.time_s)),
        investigations=tuple(_list_investigations(snapshot, run)),
    )


def _list_investigations(snapshot: Snapshot, run: Supervised) -> Iterator[InvestigationRow]:
    """Verdicts in the folders of the run's attempts, in order."""
    start = "attempts/" if run.place == "." else f"{run.place}/attempts/"
    for source in sorted(snapshot.all_of(Printed), key=lambda source: source.path):
        attempt = source.path.removeprefix(start).partition("/")[0]
        if source.kind == "investigation" and source.path.startswith(start) and attempt.isdecimal():
            yield InvestigationRow(attempt=int(attempt), path=source.path, line=say_in_a_line(source))


def describe_run_row(run: Supervised) -> RunRow:
    """A run as a row."""
    health, text = judge_run(run)
    return RunRow(
        key=key_of(run.place, "run"),
        place=run.place,
        health=health,
        state=text,
        attempt=run.attempt,
        step=run.best_step if run.best_step >= 0 else None,
        last_good_step=run.last_good_step,
        num_failures=len(run.failures),
        num_rollbacks=run.num_rollbacks,
        skipped=run.skipped,
        supervised=run.supervised,
        updated_ns=str(run.updated_ns),
    )


def tell_story(run: Supervised) -> Iterator[Chapter]:
    """The supervisor's decisions, each with what led to it."""
    for number, decision in enumerate(run.decisions, start=1):
        tone, title = _head_of(decision)
        verdict_id = f"{run.place}~{number}" if decision.verdict is not None else ""
        details = tuple(_say_action(action) for action in decision.actions)
        yield Chapter(time_s=decision.time_s, tone=tone, title=title, details=details, verdict_id=verdict_id)


def _head_of(decision: Decision) -> tuple[Tone, str]:
    """An event in one line."""
    fields, kinds = decision.fields, [str(action.get("action")) for action in decision.actions]
    match decision.event:
        case "Exited":
            code, host = fields.get("code"), fields.get("host")
            where = f" on {host}" if host else ""
            if code == 0:
                return "good", f"The attempt ended by itself{where}"
            return "bad", f"The attempt ended with {'no word' if code is None else f'code {code}'}{where}"
        case "Explained" if decision.verdict is not None:
            verdict = decision.verdict
            return "warning", f"The cause: {verdict.says} ({verdict.category}, {verdict.confidence:.0%} sure)"
        case "Examined":
            condemned = fields.get("condemned") or ()
            if not condemned:
                return "info", "The host test condemned nobody"
            return "bad", f"The host test condemned {', '.join(map(str, condemned))}"
        case "StepDone":
            loss = fields.get("loss")
            return "warning", f"Step {fields.get('step')} reported loss {loss}"
        case "SaveFailed" | "CheckpointBroken":
            return "warning", f"Checkpoint of step {fields.get('step')}: {fields.get('why')}"
        case "Saved":
            return "good", f"Checkpoint of step {fields.get('step')} is committed"
        case "StopAsked":
            return "info", "A person asked for the end of the run"
        case "Tick" if "Launch" in kinds:
            return "good", "The run is started"
        case "Tick" if "Kill" in kinds:
            return "bad", "The trainer fell silent"
        case "Tick" if "Uncordon" in kinds:
            return "good", "A host may be used again"
        case event:
            return "info", event


def _say_action(action: Mapping[str, Any]) -> str:
    """An action in one line."""
    hosts = ", ".join(map(str, action.get("hosts") or ())) or "hosts of the launcher's choice"
    attempt, step = action.get("attempt"), action.get("step")
    match action.get("action"):
        case "Launch":
            start = action.get("resume_step")
            since = "the newest checkpoint" if start is None else f"the last checkpoint at or before step {start}"
            return f"start attempt {attempt} on {hosts}, from {since}"
        case "Kill":
            grace = float(action.get("grace_s") or 0.0)
            return f"end every process of attempt {attempt}" + (f", after {grace:g} s to save" if grace else "")
        case "TakeStacks":
            return f"write down where every process of attempt {attempt} stands"
        case "Explain":
            return f"ask the logs of attempt {attempt} why it ended"
        case "Examine":
            return f"test {hosts} against each other"
        case "Cordon":
            hours = float(action.get("hours") or 0.0)
            return f"take {action.get('host')} out of use for {hours:g} h: {action.get('reason')}"
        case "Uncordon":
            return f"let {action.get('host')} back"
        case "DiscardAfter":
            return f"take checkpoints after step {step} out of use"
        case "Notify":
            return str(action.get("text"))
        case "Finish":
            return f"{action.get('outcome')}: {action.get('text')}"
        case other:
            return str(other)


def _list_marks(run: Supervised) -> Iterator[Mark]:
    last_step = 0
    for report in run.reports:
        event, place = report.event, (report.attempt, report.time_s)
        match event:
            case StepDone():
                last_step = event.step
            case Saved():
                yield _mark("saved", place, event.step, f"checkpoint {event.step} committed")
            case SaveFailed():
                yield _mark("save_failed", place, event.step, f"save of {event.step} failed: {event.why}")
            case Restored():
                yield _mark("restored", place, event.step, f"continued from {event.step} ({event.source})")
            case CheckpointBroken():
                yield _mark("broken", place, event.step, f"checkpoint {event.step} damaged: {event.why}")
    for decision in run.decisions:
        for action in decision.actions:
            if action.get("action") == "DiscardAfter":
                step = int(action.get("step") or 0)
                yield _mark("rollback", (run.attempt, decision.time_s), step, f"rolled back to step {step}")
        if decision.event == "Exited" and decision.fields.get("code") not in (0,):
            before = [r for r in run.reports if r.time_s <= decision.time_s and isinstance(r.event, StepDone)]
            step = before[-1].event.step if before and isinstance(before[-1].event, StepDone) else last_step
            attempt = before[-1].attempt if before else run.attempt
            yield _mark("failure", (attempt, decision.time_s), step, f"attempt {attempt} ended at step {step}")


def _mark(kind: str, place: tuple[int, float], step: int, text: str) -> Mark:
    return Mark(kind=cast(Any, kind), attempt=place[0], time_s=place[1], step=step, text=text)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
