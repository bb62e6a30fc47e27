"""What flow records can show of training: how fine their times are, where timeouts cut them, what sampling hides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.collect.record_lengths import find_timeout, find_usual_length
from prism.collect.tables.second_exporters import connection_names, find_second_exporters

_UNITS = ((10**9, "1 s"), (10**8, "100 ms"), (10**7, "10 ms"), (10**6, "1 ms"), (10**3, "1 us"), (1, "1 ns"))
_FEW_SAMPLES = 10.0
_LONG_NS = 5 * 10**9  # records that span many steps, and that exporters can cut sooner
_STEPS_NEED = 5  # resolutions or cuts that a step must span to be seen


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCheck:
    """What a table of FLOWS can show, and what to change; numbers are null where nothing can be said."""

    rows: int
    exporters: int
    resolution: str
    resolution_ns: int
    without_end_pct: float
    median_ms: float | None
    longest_ms: float | None
    active_timeout_ms: float | None
    sampling_rate: int | None
    samples_per_record: float | None
    double_export_pct: float
    shortest_step_ms: float | None
    problems: tuple[str, ...]
    change: tuple[str, ...]  # which settings: shorter_records, packets, more_samples, finer_times


def check_flows(flows: pl.DataFrame) -> FlowCheck:
    """Judge a FLOWS table before it is diagnosed."""
    resolution_ns, resolution = _find_resolution(flows)
    lengths = (flows["end_ns"] - flows["start_ns"]).drop_nulls().to_numpy()
    timeout_ns, usual_ns = find_timeout(flows), find_usual_length(flows) or 0
    hidden_ns = timeout_ns or (usual_ns if usual_ns >= _LONG_NS else 0)
    rate = _most(flows, "sampling_rate")
    per_record = _samples_per_record(flows, rate)
    double = _double_share(flows)
    shortest_ns = _STEPS_NEED * max(resolution_ns, hidden_ns)
    problems, change = _find_problems(resolution_ns, rate, per_record, double, len(lengths), flows.height)
    if hidden_ns:
        problem, setting = _describe_length(hidden_ns, shortest_ns, cut=timeout_ns is not None)
        problems, change = (*problems, problem), (*change, setting)
    return FlowCheck(
        rows=flows.height,
        exporters=flows["exporter"].n_unique() if "exporter" in flows.columns else 0,
        resolution=resolution,
        resolution_ns=resolution_ns,
        without_end_pct=round(100 * flows["end_ns"].null_count() / max(flows.height, 1), 2),
        median_ms=float(np.median(lengths)) / 1e6 if len(lengths) else None,
        longest_ms=float(lengths.max()) / 1e6 if len(lengths) else None,
        active_timeout_ms=None if timeout_ns is None else timeout_ns / 1e6,
        sampling_rate=rate,
        samples_per_record=per_record,
        double_export_pct=round(100 * double, 2),
        shortest_step_ms=None if resolution == "unknown" else shortest_ns / 1e6,
        problems=problems,
        change=change,
    )


def _find_resolution(flows: pl.DataFrame) -> tuple[int, str]:
    times = pl.concat([flows["start_ns"], flows["end_ns"].drop_nulls()]).unique()
    if len(times) < 2:
        return 1, "unknown"
    for unit, name in _UNITS:
        if not (times % unit != 0).any():
            return unit, name
    raise AssertionError("every whole number is a multiple of 1")


def _most(flows: pl.DataFrame, column: str) -> int | None:
    value = flows[column].max() if column in flows.columns else None
    return int(value) if isinstance(value, int) else None


def _samples_per_record(flows: pl.DataFrame, rate: int | None) -> float | None:
    if rate is None or rate <= 1 or "packets" not in flows.columns:
        return None
    usual = (flows["packets"] / flows["sampling_rate"].clip(1)).median()
    return float(usual) if isinstance(usual, (int, float)) else None


def _double_share(flows: pl.DataFrame) -> float:
    """Share of records whose connection another exporter reports too, at the same time."""
    again = find_second_exporters(flows)
    if not again.height:
        return 0.0
    names = connection_names(flows)
    return flows.join(again, on=names, how="semi", nulls_equal=True).height / flows.height


def _find_problems(
    resolution_ns: int,
    rate: int | None,
    per_record: float | None,
    double: float,
    num_ended: int,
    num_records: int,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    problems: list[str] = [] if num_records else ["there are no records"]
    change: list[str] = []
    if resolution_ns >= 10**7:
        problems.append("times are too coarse for steps: the records show jobs and who talks to whom, but no steps")
        change.append("finer_times")
    if not num_ended and num_records:
        problems.append("no record has an end: the records do not show how long transfers take")
        change.append("finer_times")
    if per_record is not None and per_record < _FEW_SAMPLES:
        problems.append(
            f"1 packet in {rate:,} leaves about {per_record:,.0f} samples in a transfer: sizes and times are uncertain"
        )
        change.append("more_samples")
    if double > 0.05:
        problems.append(
            f"{100 * double:.0f} % of records come from two exporters: export at one side of each link "
            "(in a cloud: one interface of each connection)"
        )
    return tuple(problems), tuple(dict.fromkeys(change))


def _describe_length(hidden_ns: int, shortest_ns: int, *, cut: bool) -> tuple[str, str]:
    """The problem of records that hide what is shorter than they are, and the settings that help."""
    if cut and hidden_ns < _LONG_NS:
        return (
            f"an active timeout cuts records about every {hidden_ns / 1e9:,.1f} s: steps below "
            f"{shortest_ns / 1e9:,.0f} s cannot be seen in them, and few exporters cut sooner: capture packets"
        ), "packets"
    if cut:
        return f"records are cut at {hidden_ns / 1e9:,.0f} s and span many steps: export them sooner", "shorter_records"
    return (
        f"half of all bytes are in records of {hidden_ns / 1e9:,.0f} s or more: export them sooner",
        "shorter_records",
    )
