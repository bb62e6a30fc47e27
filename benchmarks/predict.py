"""Risks of parts on published fault histories beside the plain rules people use, and what following them is worth.

python benchmarks/predict.py --data ../shared/data [--only titan,infinitehbd,replay,worlds,size]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from machine import describe_machine
from prism.predict import (
    AdviceConfig,
    Forecast,
    History,
    PredictConfig,
    TraceConfig,
    advise,
    backtest,
    forecast_often,
    predict,
    read_history,
    replay_history,
)
from prism.predict.history import DAY_NS, make_history, parse_time
from prism.predict.model import area_under_curve

TITAN_QUARTERS = ("2015-07-01", "2015-10-01", "2016-01-01", "2016-04-01", "2016-07-01", "2016-10-01")
INFINITE = PredictConfig(horizon_days=14, step_days=7, half_life_days=120)
FLEET = 400  # servers of InfiniteHBD's trace, by its README; 231 of them ever failed


def read_titan(data: Path) -> History:
    """All stays and events to the end of 2016 (Ostrouchov et al., SC '20)."""
    return read_history(data / "titan" / "events.parquet", data / "titan" / "lives.parquet")


def read_infinite(data: Path) -> History:
    """Faults of 400 servers; those that never failed have no name in the trace and get one here."""
    rows = json.loads((data / "infinitehbd" / "fault_trace.json").read_text())
    starts = [row for row in rows if row["event_type"] == "fault_start"]
    events = pl.DataFrame(
        {"serial": [r["node_id"] for r in starts], "at": [round(r["event_time"] * DAY_NS) for r in starts]}
    )
    named = events["serial"].unique(maintain_order=True).to_list()
    names = named + [f"quiet-{i}" for i in range(FLEET - len(named))]
    return make_history(events, pl.DataFrame({"serial": names, "installed": [0] * FLEET}))


def print_titan(data: Path) -> None:
    """Every quarter, trained only on its past."""
    start = time.process_time()
    found = backtest(read_titan(data), [parse_time(q) for q in TITAN_QUARTERS])
    print("Titan, an event within 90 days, every quarter (Ostrouchov et al., SC '20); goal: AUC 0.80 from 50 events on")
    print(found.insert_column(0, pl.Series("quarter", TITAN_QUARTERS)).drop("at_ns"))
    print(f"{time.process_time() - start:.0f} s of CPU")


def print_infinite(data: Path) -> None:
    """14-day windows among servers that failed before and among all, and what knowing the future would give."""
    moments = [day * DAY_NS for day in range(120, 335, 14)]
    names = {"serial": "node_id", "at": "event_time:days"}
    known = read_history(data / "infinitehbd" / "fault_trace.json", None, names)
    whole = read_infinite(data)
    print("\nInfiniteHBD, a fault within 14 days; goal 0.65; AUC weighted by events")
    for name, history in (("servers that failed before", known), (f"all {FLEET} servers", whole)):
        found = backtest(history, moments, INFINITE)
        weighted = float((found["auc"] * found["events"]).sum() / found["events"].sum())
        print(
            f"  {name}: {weighted:.3f}; the best rule of each window in hindsight {found['best_rule_auc'].mean():.3f}"
        )
    scores, counts = [], []
    for at_ns in moments:
        inside = (whole.event_ns > at_ns) & (whole.event_ns <= at_ns + 14 * DAY_NS)
        truth = np.isin(np.arange(len(whole.parts)), whole.event_part[inside])
        rate = np.bincount(whole.event_part[~inside], minlength=len(whole.parts)).astype(float)
        scores.append(area_under_curve(rate, truth))
        counts.append(int(truth.sum()))
    print(
        f"  each server's own number of faults in all the rest of the trace, future included: "
        f"{np.average(scores, weights=counts):.3f}\n  So no score that is steady per server reaches 0.65 here."
    )


def print_replay(data: Path) -> None:
    """Lost GPU hours against the best fixed interval with hindsight; goal: 15 % less."""
    titan = read_titan(data)
    trace = {"start_ns": parse_time("2015-10-01"), "end_ns": parse_time("2016-12-31")}
    forecasts = forecast_often(titan, TraceConfig(job_nodes=1, **trace), PredictConfig())
    _print_policies("Titan, 15 months, forecasts every 90 days", titan, trace, forecasts, (512, 1_024, 1_843), 1)
    infinite = read_infinite(data)
    trace = {"start_ns": 120 * DAY_NS, "end_ns": 340 * DAY_NS}
    forecasts = forecast_often(infinite, TraceConfig(job_nodes=1, refresh_days=28.0, **trace), INFINITE)
    _print_policies("InfiniteHBD, 220 days, forecasts every 28 days", infinite, trace, forecasts, (128, 256, 360), 8)


def _print_policies(
    title: str, history: History, trace: dict[str, int], forecasts: Sequence[Forecast], sizes: Sequence[int], gpus: int
) -> None:
    print(
        f"\nreplay: {title}; the supervisor's own decisions; saves 60 s, restarts 600 s; saved against the best fixed"
    )
    for size in sizes:
        for seed in (0, 1):
            config = TraceConfig(job_nodes=size, gpus_per_node=gpus, seed=seed, **trace)
            found = replay_history(history, config, forecasts)
            cells = [
                f"{loss.policy} {loss.lost_gpu_h:,.0f} ({found.saving(loss.policy):+.1%}, {loss.failures} failures, "
                f"{loss.swaps} swaps, {loss.false_swaps} in vain)"
                for loss in found.losses
                if not loss.policy.startswith("fixed") or loss.policy == found.best_fixed
            ]
            print(f"  {size:,} of {found.nodes:,} nodes, draw {seed}: " + "; ".join(cells), flush=True)
    print(f"  a swap pays where at least {found.break_even:.0%} of swapped nodes would have failed")


def make_world(parts: int, days: int, ratio: float, seed: int) -> History:
    """Parts in three cages with a constant hazard; those of cage 2 fail `ratio` times as often."""
    rng = np.random.default_rng(seed)
    cage = np.arange(parts) % 3
    hazard = 0.0006 * np.where(cage == 2, ratio, 1.0)
    number = rng.poisson(hazard * days)
    part = np.repeat(np.arange(parts), number)
    places = [f"r{i // 30}c{c}n{i}" for i, c in enumerate(cage)]
    at = (rng.random(len(part)) * days * DAY_NS).astype(np.int64)
    events = pl.DataFrame({"serial": [f"p{p}" for p in part], "location": [places[p] for p in part], "at": at})
    names = [f"p{i}" for i in range(parts)]
    return make_history(events, pl.DataFrame({"serial": names, "location": places, "installed": [0] * parts}))


def print_worlds() -> None:
    """Known hazards: recovered within 10 %; none: nothing predicted."""
    print("\nsynthetic worlds, 6,000 parts, 400 days, 30 days ahead")
    config = PredictConfig(horizon_days=30, step_days=15)
    for ratio in (12.0, 4.0, 1.0):
        history = make_world(6_000, 400, ratio, 0)
        found = predict(history, 365 * DAY_NS, config)
        risk = np.empty(6_000)
        for entry in found.risks:
            risk[int(entry.id[1:])] = entry.risk
        hot = np.arange(6_000) % 3 == 2
        true = [1 - np.exp(-0.0006 * 30 * r) for r in (1.0, ratio)]
        auc = backtest(history, [365 * DAY_NS], config)["auc"][0]
        advice = advise(found, {}, AdviceConfig(job_nodes=3_000))
        print(
            f"  hazard x{ratio:g}: predicted over true {risk[~hot].mean() / true[0]:.2f} "
            f"and {risk[hot].mean() / true[1]:.2f}, "
            f"AUC {auc:.3f}, tells nodes apart: {found.tells_apart}, nodes avoided {len(advice.avoid)}",
            flush=True,
        )


def print_size() -> None:
    """One million parts: goal two minutes on two cores."""
    history = make_world(1_000_000, 400, 4.0, 0)
    start = time.process_time()
    found = predict(history, 365 * DAY_NS, PredictConfig(horizon_days=90))
    cpu_s = time.process_time() - start
    print(f"\n1,000,000 parts, {len(history.event_ns):,} events: {cpu_s:.0f} s of CPU, {found.method}")


def main() -> int:
    """Print one table per part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with titan/ and infinitehbd/")
    parser.add_argument("--only", default="titan,infinitehbd,replay,worlds,size")
    options = parser.parse_args()
    pl.Config.set_tbl_cols(20)
    pl.Config.set_tbl_rows(40)
    pl.Config.set_tbl_width_chars(180)
    pl.Config.set_tbl_hide_dataframe_shape(True)
    print(describe_machine())
    chosen = options.only.split(",")
    for name, show in (("titan", print_titan), ("infinitehbd", print_infinite), ("replay", print_replay)):
        if name in chosen:
            show(options.data)
    if "worlds" in chosen:
        print_worlds()
    if "size" in chosen:
        print_size()
    return 0


if __name__ == "__main__":
    sys.exit(main())
