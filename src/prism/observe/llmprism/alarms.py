"""Phase 4: steps, groups and switches that deviate by k standard deviations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from prism.records.findings import Culprit, CulpritType, Finding, FindingKind

_SIGMAS = 3.0  # k of the k-sigma rules; the published value was not found
_PAST = 10  # steps that a step is compared with
_FEWEST = 4  # groups or switches that make a comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A deviation of `sigmas` from similar items from `start_ns` to `end_ns`, and its cost in seconds."""

    kind: FindingKind
    type: CulpritType
    id: str
    start_ns: int
    end_ns: int
    lost_s: float
    sigmas: float
    evidence: str


def raise_alarms(
    job: str, messages: pl.DataFrame, steps: pl.DataFrame, groups: pl.DataFrame, endpoints: pl.DataFrame, gpus: int
) -> list[Finding]:
    """Findings of one job, the most unusual first. `groups` maps endpoint to the name of its dp group."""
    if steps.is_empty():
        return []
    bursts = (
        messages.filter(pl.col("kind") == "dp")
        .sort("start_ns")
        .join_asof(steps.select("index", step_ns="start_ns", until_ns="end_ns"), left_on="start_ns", right_on="step_ns")
        .filter(pl.col("start_ns") < pl.col("until_ns"))
    )
    alarms = _once([*slow_steps(job, steps), *slow_groups(bursts, groups), *slow_switches(bursts, endpoints)])
    return [
        Finding(
            kind=a.kind, job=job, culprit=Culprit(type=a.type, id=a.id), start_ns=a.start_ns, end_ns=a.end_ns,
            lost_gpu_seconds=round(a.lost_s * gpus, 3), score=round(min(a.sigmas / (a.sigmas + _SIGMAS), 0.99), 3),
            evidence=a.evidence,
        )
        for a in sorted(alarms, key=lambda a: -a.sigmas)
    ]  # fmt: skip


def _once(alarms: Iterable[Alarm]) -> list[Alarm]:
    """Alarms about one thing as one: its strongest evidence, from the first to the last, with all that was lost."""
    told: dict[tuple[str, str], Alarm] = {}
    for alarm in alarms:
        before = told.get((alarm.kind, alarm.id))
        if before is not None:
            strongest = max(before, alarm, key=lambda a: a.sigmas)
            alarm = replace(
                strongest,
                start_ns=min(before.start_ns, alarm.start_ns),
                end_ns=max(before.end_ns, alarm.end_ns),
                lost_s=before.lost_s + alarm.lost_s,
            )
        told[alarm.kind, alarm.id] = alarm
    return list(told.values())


def slow_steps(job: str, steps: pl.DataFrame) -> Iterable[Alarm]:
    """Steps far above the mean of those before them."""
    length = (steps["end_ns"] - steps["start_ns"]).to_numpy() / 1e9
    for i in range(3, len(length)):
        past = length[max(0, i - _PAST) : i]
        sigmas = (length[i] - past.mean()) / max(past.std(), 1e-9)
        if sigmas > _SIGMAS:
            yield Alarm(
                kind="slow_step", type="job", id=job,
                start_ns=int(steps["start_ns"][i]), end_ns=int(steps["end_ns"][i]),
                lost_s=float(length[i] - past.mean()), sigmas=float(sigmas),
                evidence=f"step {i} takes {length[i]:.3f} s, the {len(past)} before it {past.mean():.3f} s on average",
            )  # fmt: skip


def slow_groups(bursts: pl.DataFrame, groups: pl.DataFrame) -> Iterable[Alarm]:
    """Data-parallel groups that communicate far longer than the others in the same step."""
    spent = (
        bursts.join(groups, left_on="src", right_on="endpoint")
        .group_by("group", "index", "step_ns", "until_ns")
        .agg(((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).alias("seconds"))
    )
    yield from _outliers(
        spent, "group", "slow_group", "group", "communicates {0:.1f} ms in step {2}, the others {1:.1f} ms"
    )


def slow_switches(bursts: pl.DataFrame, endpoints: pl.DataFrame) -> Iterable[Alarm]:
    """Switches whose data-parallel flows are far slower than those of the others in the same step."""
    at = endpoints.select(pl.col("endpoint").cast(pl.UInt32), "switch").drop_nulls()
    slowness = (
        bursts.with_columns(pl.col("src").cast(pl.UInt32))
        .join(at, left_on="src", right_on="endpoint")
        .group_by("switch", "index", "step_ns", "until_ns")
        .agg(((pl.col("end_ns") - pl.col("start_ns")).sum() / pl.col("bytes").sum().clip(1)).alias("seconds"))
    )
    yield from _outliers(
        slowness, "switch", "slow_switch", "switch", "takes {0:.2g} ps a byte in step {2}, the others {1:.2g}"
    )


def _outliers(frame: pl.DataFrame, name: str, kind: FindingKind, type_: CulpritType, words: str) -> Iterable[Alarm]:
    """Members of a step that exceed the mean of the others by k standard deviations of the others."""
    for (index,), part in frame.group_by("index", maintain_order=True):
        if part.height < _FEWEST:
            continue
        seconds = part["seconds"].to_numpy()
        for i in np.argsort(-seconds)[:1]:
            others = np.delete(seconds, i)
            sigmas = (seconds[i] - others.mean()) / max(others.std(), 1e-9 + 0.01 * others.mean())
            if sigmas > _SIGMAS:
                row = part.row(int(i), named=True)
                yield Alarm(
                    kind=kind, type=type_, id=str(row[name]), start_ns=row["step_ns"], end_ns=row["until_ns"],
                    lost_s=0.0, sigmas=float(sigmas),
                    evidence=words.format(1e3 * seconds[i], 1e3 * others.mean(), index),
                )  # fmt: skip
