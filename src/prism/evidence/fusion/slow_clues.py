"""Clues about what slows a running job, from dumps, flows, counters, profiles and NCCL Inspector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from prism.evidence.fusion.clues import Clue, Suspect, SuspectType
from prism.evidence.traces.counters import Anomaly
from prism.evidence.traces.late_calls import LateRank
from prism.evidence.traces.profiled_ranks import ProfiledJob
from prism.records.findings import Finding

_PROFILE_SURE, _ONE_STEP_SURE = 0.95, 0.75  # at most, since profiles show some steps of many, or only a few
_MOST_NAMED = 8  # hosts of a group that a finding names as one of them
# Of findings with a confidence of 0.9 or more, 12 of 12 named the culprit on captures of another world; of the others,
# 1 of 5 did (docs/observe-scoreboard.md). One more right and one more wrong finding are added to each count.
_FLOWS_SURE, _FLOWS_RIGHT, _FLOWS_UNSURE = 0.9, 0.93, 0.4


def read_late_rank(late: LateRank) -> Clue:
    """A rank that is last to arrive at collectives that do complete."""
    return Clue(
        source="flight_recorder",
        what="slow rank: the others wait for it",
        text=f"rank {late.rank} came last to {late.last} of {late.calls} collectives; the others waited "
        f"{late.held_ns / late.calls / 1e6:.0f} ms for it each time",
        suspects=(Suspect(type="rank", id=str(late.rank)),),
        since_ns=None,
        confidence=0.7,
        shows="slow",
        causes=("slow",),
        advice="compare that rank's host, clocks and input with the others'",
    )


def read_findings(findings: Sequence[Finding], host_of: Mapping[str, str] | None = None) -> list[Clue]:
    """Clues from flows: each finding is a clue about hosts and links; `host_of` maps addresses to hosts."""
    most = max((f.lost_gpu_seconds for f in findings), default=0.0)
    return [_read_finding(f, host_of or {}, f.lost_gpu_seconds / most if most else 1.0) for f in findings[:5]]


def _read_finding(finding: Finding, host_of: Mapping[str, str], share: float) -> Clue:
    """A finding that costs the job little may be true without being the cause: `share` is relative to the worst."""
    who = finding.culprit
    kind: SuspectType = "link" if who.type in ("link", "switch") else "host"
    named = [who.id] if kind == "link" else list(dict.fromkeys(host_of.get(a, a) for a in who.id.split(",")))
    if who.type not in ("host", "endpoint", "link", "switch", "group") or len(named) > _MOST_NAMED:
        named = []
    stopped = finding.kind in ("hang", "restart")
    right = min(finding.score, _FLOWS_RIGHT) if finding.score >= _FLOWS_SURE else finding.score * _FLOWS_UNSURE
    return Clue(
        source="flows",
        what=finding.kind,
        text=f"{finding.kind}: {who.type} {who.id}: {finding.evidence}",
        suspects=tuple(Suspect(type=kind, id=name) for name in named),
        since_ns=finding.start_ns,
        confidence=right if stopped else right * share / (1 - right + right * share),
        shows="stop" if stopped else "slow",
        causes=("stop",) if stopped else ("slow",),
        one_of=len(named) > 1,
    )


def read_anomalies(anomalies: Sequence[Anomaly]) -> list[Clue]:
    """Clues from counters, one per host."""
    by_host: dict[str, list[Anomaly]] = {}
    for anomaly in anomalies:
        by_host.setdefault(anomaly.host, []).append(anomaly)
    clues = []
    for host, own in list(by_host.items())[:8]:
        gpus = dict.fromkeys(f"{host} {a.device}" for a in own if a.device.startswith("gpu"))
        told = "; ".join(f"{a.device} {a.words} ({a.metric} {a.value:g})" for a in own[:3])
        clues.append(
            Clue(
                source="counters",
                what=own[0].words,
                text=f"{host}: {told}",
                suspects=(Suspect(type="host", id=host), *(Suspect(type="gpu", id=g) for g in list(gpus)[:4])),
                since_ns=min(a.since_ns for a in own),
                confidence=max(a.confidence for a in own),
                causes=tuple(dict.fromkeys(effect for a in own for effect in a.causes)),
                advice=f"drain {host} and test it",
            )
        )
    return clues


def read_profile_study(job: ProfiledJob) -> list[Clue]:
    """A clue from profiles: the rank that the others wait for, and why it is late; or how much one costs at most."""
    found = job.straggler
    if found is None:
        return []
    led = f"the others waited longest for rank {found.rank} in {found.led} of {found.steps} {found.unit}s"
    if not found.stands_out:
        return [
            Clue(
                source="kineto",
                what="no rank stands out",
                text=f"no rank stands out: at most {found.most_share:.0%} of a {found.unit}; {led}, by "
                f"{found.wait_ns / 1e6:.1f} ms, and chance gives as much",
                suspects=(),
                since_ns=None,
                confidence=0.5,
                shows="slow",
                causes=("slow",),
            )
        ]
    return [
        Clue(
            source="kineto",
            what="slow rank: the others wait for it",
            text=f"{led}, by {found.wait_ns / 1e6:.1f} ± {found.error_ns / 1e6:.1f} ms or {found.share:.0%} of a "
            f"{found.unit}{_why_late(job, found.rank)}",
            suspects=(Suspect(type="rank", id=str(found.rank)),),
            since_ns=None,
            confidence=min(1 - found.chance, _PROFILE_SURE if found.unit == "step" else _ONE_STEP_SURE),
            shows="slow",
            causes=("slow",),
            advice="compare that rank's kernels, clocks and input with the others'",
        )
    ]


def _why_late(job: ProfiledJob, rank: int) -> str:
    """The part of its time that exceeds that of the median rank the most."""
    whole = job.breakdown.filter(pl.col("step").is_null())
    parts = {"compute_ns": "it computes", "idle_host_ns": "its host launches", "copies_ns": "it copies"}
    own = whole.filter(pl.col("rank") == rank)
    excess = {name: own[name][0] - float(whole[name].median() or 0) for name in parts}  # type: ignore[arg-type]
    worst = max(excess, key=lambda name: excess[name])
    slow = job.slow_kernels.filter(pl.col("rank") == rank)
    told = f"; {parts[worst]} {excess[worst] / 1e6:.1f} ms longer than the median rank" if excess[worst] > 0 else ""
    if slow.height:
        kernel = slow.row(0, named=True)
        told += f"; {kernel['name'][:60]} takes {kernel['mean_us']:.0f} us there and {kernel['usual_us']:.0f} elsewhere"
    return told


def read_waited_for(table: pl.DataFrame) -> list[Clue]:
    """A clue from NCCL Inspector: the others wait for the rank that waits least in most calls."""
    if table.height < 2:
        return []
    first = table.row(0, named=True)
    if first["last"] < 0.6 * first["calls"] or first["held_us"] < 2 * table.row(1, named=True)["held_us"]:
        return []
    named = [] if first["rank"] is None else [Suspect(type="rank", id=str(first["rank"]))]
    named += [Suspect(type="host", id=first["host"])] if first["host"] else []
    who = f"a process of {first['host']}" if first["rank"] is None else f"rank {first['rank']}"
    return [
        Clue(
            source="inspector",
            what="slow rank: the others wait for it",
            text=f"{who} came last to {first['last']} of {first['calls']} collectives; the others "
            f"waited {first['held_us'] / 1e3:.1f} ms for it",
            suspects=tuple(named),
            since_ns=None,
            confidence=0.7,
            shows="slow",
            causes=("slow",),
        )
    ]
