"""Risks of parts on published fault histories beside the plain rules people use, and what following them is worth.

python proving/benchmarks/predict.py --data ../shared/data [--only titan,level,infinitehbd,replay,precision,worlds,size]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from machine import describe_machine
from prism.datacenter.predict import (
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
from prism.datacenter.predict.history import DAY_NS, make_history, parse_time
from prism.datacenter.predict.model import area_under_curve

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
    _print_structure(known, moments)


def _print_structure(history: History, moments: Sequence[int]) -> None:
    """What there is to know: an oracle of rates, and whether faults of a server come in clusters."""
    days, part, size = history.event_ns / DAY_NS, history.event_part, len(history.parts)
    rng = np.random.default_rng(0)

    def judge(times: np.ndarray, score: Callable[[float], np.ndarray]) -> float:
        scores, counts = [], []
        for at in (moment / DAY_NS for moment in moments):
            seen = np.isin(np.arange(size), part[times <= at])
            truth = np.isin(np.arange(size), part[(times > at) & (times <= at + 14)])
            scores.append(area_under_curve(score(at)[seen], truth[seen]))
            counts.append(int(truth[seen].sum()))
        return float(np.average(np.nan_to_num(scores, nan=0.5), weights=counts))

    def recency(times: np.ndarray) -> Callable[[float], np.ndarray]:
        def score(at: float) -> np.ndarray:
            last = np.full(size, -np.inf)
            np.maximum.at(last, part[times <= at], times[times <= at])
            return np.nan_to_num(last, neginf=-1e9)

        return score

    rest = judge(days, lambda at: np.bincount(part[(days <= at) | (days > at + 14)], minlength=size).astype(float))
    print(f"  each server's own number of faults in all the rest of the trace, the future included: {rest:.3f}")
    shuffled = []
    for _ in range(300):
        times = rng.permutation(days)
        shuffled.append(judge(times, recency(times)))
    real = judge(days, recency(days))
    beaten = (sum(other >= real for other in shuffled) + 1) / (len(shuffled) + 1)
    print(
        f"  the latest fault alone: {real:.3f}; with the times of faults shuffled among servers "
        f"{np.mean(shuffled):.3f} (p {beaten:.3f}): faults of a server come in clusters"
    )


def print_level(data: Path) -> None:
    """Why the number of events is not known within 10 %: chance alone, and growth that no past shows."""
    titan = read_titan(data)
    starts = [parse_time(quarter) for quarter in TITAN_QUARTERS]

    def count(start: int) -> int:
        inside = (titan.event_ns > start) & (titan.event_ns <= start + 90 * DAY_NS)
        return len(np.unique(titan.event_part[inside]))

    came = np.array([count(start) for start in starts])
    drawn = np.random.default_rng(0).poisson(came[1:], (200_000, len(came) - 1))
    inside = np.abs(came[1:] / np.maximum(drawn, 1) - 1.0) <= 0.1
    growth = came[1:] / came[:-1]
    steady = min(np.linspace(1.0, 3.0, 401), key=lambda g: np.abs(np.log(g / growth)).max())
    print("\nTitan, how many parts have an event; goal within 10 %")
    print(f"  quarters {came.tolist()}, growth {np.round(growth, 2).tolist()}")
    print(
        f"  the true mean of every quarter known, counts by chance: all within 10 % in {inside.all(1).mean():.0%} "
        f"of draws (single quarters {', '.join(f'{share:.0%}' for share in inside.mean(0))})"
    )
    print(
        f"  with the best steady growth in hindsight ({steady:.2f} a quarter): "
        f"{', '.join(f'{ratio:.2f}' for ratio in steady / growth)} of what came"
    )


def print_precision(data: Path) -> None:
    """What following warnings is worth as a function of how many of them are right."""
    history = read_infinite(data)
    trace = {"start_ns": 120 * DAY_NS, "end_ns": 340 * DAY_NS}
    truth = forecast_often(history, TraceConfig(job_nodes=1, refresh_days=28.0, **trace), INFINITE)
    print(
        "\nInfiniteHBD, 128 of 400 servers: as many warnings every 28 days as servers will fail, a share of them right"
    )
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        cells = []
        for seed in (0, 1, 2):
            rng = np.random.default_rng(seed)
            made = [_warn(forecast, history, share, rng) for forecast in truth]
            found = replay_history(history, TraceConfig(job_nodes=128, seed=seed, **trace), made)
            cells.append((found.saving("risk: place and interval"), found.saving("risk: and swap")))
        place, swap = np.mean(cells, axis=0)
        print(f"  {share:.0%} right: saved {place:+.1%} by placement, {swap:+.1%} with swaps", flush=True)
    right = total = 0
    for forecast in truth:
        failing = _failing(forecast, history)
        top = [risk.id for risk in forecast.risks[: len(failing)]]
        right, total = right + sum(history.parts.index(name) in failing for name in top), total + len(top)
    print(f"  of as many servers that Prism's own forecasts put first, {right / total:.0%} failed")


def _failing(forecast: Forecast, history: History) -> np.ndarray:
    """Servers with a fault before the next forecast."""
    inside = (history.event_ns > forecast.at_ns) & (history.event_ns <= forecast.at_ns + 28 * DAY_NS)
    return np.unique(history.event_part[inside])


def _warn(forecast: Forecast, history: History, share: float, rng: np.random.Generator) -> Forecast:
    """A forecast that warns of some servers, of which a share will fail before the next one."""
    failing = _failing(forecast, history)
    others = np.setdiff1d(np.arange(len(history.parts)), failing)
    right = rng.choice(failing, round(share * len(failing)), replace=False)
    wrong = rng.choice(others, len(failing) - len(right), replace=False)
    warned = {history.parts[number] for number in (*right, *wrong)}
    risks = [replace(risk, risk=0.5 if risk.id in warned else 0.02) for risk in forecast.risks]
    return replace(forecast, risks=tuple(sorted(risks, key=lambda risk: -risk.risk)))


def print_replay(data: Path) -> None:
    """Lost GPU hours against the best fixed interval with hindsight; goal: 15 % less."""
    print_replay_infinite(data)
    titan = read_titan(data)
    trace = {"start_ns": parse_time("2015-10-01"), "end_ns": parse_time("2016-12-31")}
    forecasts = forecast_often(titan, TraceConfig(job_nodes=1, **trace), PredictConfig())
    _print_policies("Titan, 15 months, forecasts every 90 days", titan, trace, forecasts, (512, 1_024, 1_843), 1)


def print_replay_infinite(data: Path) -> None:
    """The same on InfiniteHBD's faults."""
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
    parser.add_argument("--only", default="titan,level,infinitehbd,replay,precision,worlds,size")
    options = parser.parse_args()
    pl.Config.set_tbl_cols(20)
    pl.Config.set_tbl_rows(40)
    pl.Config.set_tbl_width_chars(180)
    pl.Config.set_tbl_hide_dataframe_shape(True)
    print(describe_machine())
    chosen = options.only.split(",")
    parts = {"titan": print_titan, "level": print_level, "infinitehbd": print_infinite}
    for name, show in {**parts, "replay": print_replay, "precision": print_precision}.items():
        if name in chosen:
            show(options.data)
    if "worlds" in chosen:
        print_worlds()
    if "size" in chosen:
        print_size()
    return 0


if __name__ == "__main__":
    sys.exit(main())
