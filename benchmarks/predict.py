"""Risks of parts on published fault histories, beside the plain rules people use.

python benchmarks/predict.py --data ../shared/data
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import polars as pl

from prism.predict import PredictConfig, backtest, read_history
from prism.predict.history import parse_time

TITAN_QUARTERS = ("2015-07-01", "2015-10-01", "2016-01-01", "2016-04-01", "2016-07-01", "2016-10-01")


def main() -> int:
    """Print one table per history."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with titan/ and infinitehbd/")
    data = parser.parse_args().data
    pl.Config.set_tbl_cols(20)
    pl.Config.set_tbl_rows(40)
    pl.Config.set_tbl_width_chars(180)
    pl.Config.set_tbl_hide_dataframe_shape(True)
    if (data / "titan").is_dir():
        start = time.perf_counter()
        history = read_history(data / "titan" / "events.parquet", data / "titan" / "lives.parquet")
        found = backtest(history, [parse_time(q) for q in TITAN_QUARTERS])
        print("Titan, an event within 90 days, every quarter (Ostrouchov et al., SC '20)")
        print(found.insert_column(0, pl.Series("quarter", TITAN_QUARTERS)).drop("at_ns"))
        print(f"{time.perf_counter() - start:.0f} s")
    if (data / "infinitehbd").is_dir():
        names = {"serial": "node_id", "at": "event_time:days"}
        history = read_history(data / "infinitehbd" / "fault_trace.json", None, names)
        config = PredictConfig(horizon_days=14, step_days=7, half_life_days=120)
        found = backtest(history, [parse_time(f"{day}days") for day in range(120, 335, 14)], config)
        weighted = float((found["auc"] * found["events"]).sum() / found["events"].sum())
        print("InfiniteHBD, a fault within 14 days, among nodes that had one before")
        best = found["best_rule_auc"].mean()
        print(f"AUC, weighted by events: {weighted:.3f}; of the best rule in hindsight: {best:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
