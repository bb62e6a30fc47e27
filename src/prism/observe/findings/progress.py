"""How the job gets on: steps out of the ordinary, a drift, a silence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from prism.observe.findings.case import Case, culprit
from prism.observe.findings.windows import find_window, spread_of
from prism.records.findings import Finding

_SLOW_STEP = 0.10
_SILENT_STEPS = 3.0


def find_slow_steps(case: Case) -> list[Finding]:
    """A stretch of steps well above the job's own usual length."""
    lengths = case.length_s
    if len(lengths) < 6:
        return []
    usual = float(np.quantile(lengths, 0.3))
    noise = spread_of(lengths[lengths <= np.median(lengths)]) / usual
    threshold = max(_SLOW_STEP, 6 * noise)
    window = find_window(lengths / usual - 1, threshold)
    if window is None or window.last - window.first + 1 > 0.8 * len(lengths):
        return []
    inside = lengths[window.first : window.last + 1]
    evidence = (
        f"{len(inside)} steps of {np.mean(inside):.3f} s on average, up to {inside.max():.3f} s; usually {usual:.3f} s"
    )
    return [
        case.finding(
            "slow_step", culprit("job", case.job.id), window.first, window.last,
            lost_s=float((inside - usual).sum()), score=min(0.6, window.mean), evidence=evidence,
        )
    ]  # fmt: skip


def find_hang(case: Case) -> list[Finding]:
    """The job fell silent before the observation ended; the rank whose message is due longest stopped first."""
    if case.job.period_ns is None or case.messages.is_empty() or case.steps.height < 3:
        return []
    last = int(case.messages["end_ns"].max())  # type: ignore[arg-type]
    silent = case.observed_until_ns - last
    usual = float(np.median(case.length_s)) * 1e9
    if silent < _SILENT_STEPS * usual:
        return []
    if _ended_cleanly(case):
        return []
    stopped, why = _first_to_stop(case)
    lost = silent / 1e9
    finding = case.finding(
        "hang",
        case.name_worker(stopped) if stopped else culprit("job", case.job.id),
        case.steps.height - 1,
        case.steps.height - 1,
        lost_s=lost,
        score=0.95,
        evidence=f"no traffic for {silent / 1e9:.1f} s, {silent / usual:.1f} usual steps; {why}",
    )
    return [_between(finding, last, case.observed_until_ns)]


def _ended_cleanly(case: Case) -> bool:
    """Whether the last step is whole: the job came to its end rather than to a stop."""
    boundaries = case.steps["start_ns"].to_numpy()
    starts = np.sort(case.messages.filter(pl.col("role") != "rare")["start_ns"].to_numpy())
    counts = np.diff(np.searchsorted(starts, boundaries))
    usual = float(np.median(counts)) if len(counts) else 0.0
    after = len(starts) - np.searchsorted(starts, int(case.steps["end_ns"][-1]))
    return bool(after <= 0.02 * usual)


def _between(finding: Finding, start_ns: int, end_ns: int) -> Finding:
    return replace(finding, start_ns=start_ns, end_ns=end_ns)


def _first_to_stop(case: Case) -> tuple[list[int], str]:
    """The worker whose first missing message was due earliest, by the pattern of the last whole step."""
    whole = case.steps.row(-1, named=True)
    if whole["end_ns"] > int(case.messages["end_ns"].max()) and case.steps.height > 1:  # type: ignore[arg-type]
        whole = case.steps.row(-2, named=True)
    known = case.messages.filter(pl.col("role") != "rare")
    template = known.filter((pl.col("start_ns") >= whole["start_ns"]) & (pl.col("start_ns") < whole["end_ns"]))
    begin = int(case.steps["end_ns"][-1])
    rest = known.filter(pl.col("start_ns") >= begin)
    due = template.group_by("src", "dst", "size_class").agg(
        (pl.col("start_ns").sort() - whole["start_ns"]).alias("offsets")
    )
    sent = rest.group_by("src", "dst", "size_class").len().rename({"len": "sent"})
    due = due.join(sent, on=["src", "dst", "size_class"], how="left").with_columns(pl.col("sent").fill_null(0))
    missing = due.filter(pl.col("sent") < pl.col("offsets").list.len()).with_columns(
        due=pl.col("offsets").list.get(pl.col("sent"), null_on_oob=True)
    )
    if missing.is_empty():
        return [], "every rank finished its step"
    first = missing.sort("due").row(0, named=True)
    endpoint = int(first["src"])
    # Tensor-parallel ranks of a host stop together.
    soon = first["due"] + 0.01 * (whole["end_ns"] - whole["start_ns"])
    late = missing.filter(pl.col("due") <= soon)["src"].unique().to_list()
    worker = [e for e in late if case.host(e) == case.host(endpoint)]
    return worker, f"the first message missing is from {case.address(endpoint)} to {case.address(int(first['dst']))}"
