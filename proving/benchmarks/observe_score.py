"""How close a diagnosis is to the truth of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

DEGREES = ("dp", "pp", "tp", "cp", "ep")


@dataclass
class Score:
    """Counts and errors of one scenario; scores of many are added up."""

    jobs: int = 0
    jobs_exact: int = 0
    pairs: int = 0
    pairs_right: int = 0
    layouts: int = 0
    layouts_right: int = 0
    stages: int = 0
    stages_right: int = 0
    steps: int = 0
    steps_missed: int = 0
    step_errors: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    claims: list[tuple[str, float, bool]] = field(default_factory=list)  # "layout", how surely said, whether right

    def add(self, other: Score) -> None:
        """Add another scenario's counts."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def score(diagnosis: dict[str, Any], truth: dict[str, Any]) -> Score:
    """Compare `prism diagnose --json` with a truth file."""
    total = Score()
    for job in truth["jobs"]:
        total.jobs += 1
        wanted = visible_endpoints(job)
        found = max(diagnosis["jobs"], key=lambda j: len(wanted & set(j["endpoints"])), default=None)
        if found is None or not wanted & set(found["endpoints"]):
            total.wrong.append(f"{job['id']}: not found")
            total.pairs += len(job["pairs"])
            total.layouts += 1
            continue
        exact = wanted == set(found["endpoints"])
        total.jobs_exact += exact
        if not exact:
            total.wrong.append(f"{job['id']}: {len(wanted)} endpoints, found {len(found['endpoints'])}")
        _score_pairs(total, job, found)
        _score_layout(total, job, found)
        _score_steps(total, job, found)
    return total


def visible_endpoints(job: dict[str, Any]) -> set[str]:
    """The job's endpoints that send or receive anything: a NIC whose rank only talks inside its host is never seen."""
    busy = {p[side] for p in job["pairs"] for side in ("src", "dst")}
    return set(job["endpoints"]) & busy


def _score_pairs(total: Score, job: dict[str, Any], found: dict[str, Any]) -> None:
    kinds: dict[tuple[str, str], set[str]] = {}
    for pair in job["pairs"]:
        kinds.setdefault((pair["src"], pair["dst"]), set()).add(pair["kind"])
    got = {(p["src"], p["dst"]): p["kind"] for p in found["pairs"]}
    bad: dict[str, int] = {}
    for (src, dst), right in kinds.items():
        total.pairs += 1
        kind = got.get((src, dst), got.get((dst, src), "missing"))
        total.pairs_right += kind in right
        if kind not in right:
            key = f"{'/'.join(sorted(right))}->{kind}"
            bad[key] = bad.get(key, 0) + 1
    if bad:
        total.wrong.append(f"{job['id']}: pairs {bad}")


def _score_layout(total: Score, job: dict[str, Any], found: dict[str, Any]) -> None:
    total.layouts += 1
    wanted = {d: job["layout"].get(d, 1) for d in DEGREES}
    got = {d: found["layout"][d] for d in DEGREES}
    total.layouts_right += wanted == got
    if got["dp"] is not None:
        total.claims.append(("layout", float(found["layout"]["confidence"]), wanted == got))
    if wanted != got:
        total.wrong.append(f"{job['id']}: layout {wanted} found {got}")
    for endpoint, stage in job.get("stages", {}).items():
        if endpoint in found["stages"]:
            total.stages += 1
            total.stages_right += found["stages"][endpoint] == stage


def _score_steps(total: Score, job: dict[str, Any], found: dict[str, Any]) -> None:
    """Each true step against the found one that starts nearest, once the constant offset of the two is removed."""
    true_start = np.array([s["start_ns"] for s in job["steps"]], dtype=np.float64)
    true_length = np.array([s["end_ns"] - s["start_ns"] for s in job["steps"]], dtype=np.float64)
    total.steps += len(true_start)
    if not found["steps"]:
        total.steps_missed += len(true_start)
        return
    start = np.array([s["start_ns"] for s in found["steps"]], dtype=np.float64)
    length = np.array([s["end_ns"] - s["start_ns"] for s in found["steps"]], dtype=np.float64)
    period = float(np.median(true_length))
    offsets = (start[:, None] - true_start[None, :]).ravel()
    near = offsets[np.abs(offsets) <= period / 2]
    shift = float(np.median(near)) if len(near) else 0.0
    errors, missed = [], 0
    for begin, wanted in zip(true_start, true_length, strict=True):
        i = int(np.argmin(np.abs(start - shift - begin)))
        if abs(start[i] - shift - begin) > 0.3 * period:
            missed += 1
            continue
        errors.append(abs(length[i] - wanted) / wanted)
    total.steps_missed += missed
    total.step_errors += errors
    if missed > 1 or (errors and np.mean(errors) > 0.003):
        total.wrong.append(f"{job['id']}: steps missed {missed}, error {100 * np.mean(errors or [np.nan]):.3f} %")
