"""Reading flows: Prism (validated) beside plain polars and pandas, in one run.

    python proving/benchmarks/flows_reading.py [--rows 20000000] [--csv-rows 5000000]

Each reader runs in a fresh process, interleaved, best of three; peak memory is what the process grew by.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from machine import describe_machine, peak_rss_bytes

READERS = ("polars", "prism", "pandas")


def make_flows(rows: int) -> pl.DataFrame:
    """Flows of 8,192 endpoints over a minute."""
    rng = np.random.default_rng(0)
    addresses = pl.Series([f"10.{i // 65536}.{i // 256 % 256}.{i % 256}" for i in range(8192)])
    start = np.sort(rng.integers(0, 60 * 10**9, rows)) + 1_700_000_000 * 10**9
    return pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": start + rng.integers(1_000, 10_000_000, rows),
            "src": addresses.gather(rng.integers(0, 8192, rows)),
            "dst": addresses.gather(rng.integers(0, 8192, rows)),
            "bytes": rng.integers(1, 1 << 24, rows),
        }
    )


def read_once(reader: str, path: Path) -> None:
    """Read `path` in this process; print seconds, frame bytes and peak memory growth."""
    if reader == "pandas":
        import pandas as pd

        run = lambda: pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)  # noqa: E731
    elif reader == "prism":
        from prism.collect.tables import read_flows

        run = lambda: read_flows(path)  # noqa: E731
    else:
        run = lambda: pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)  # noqa: E731
    before = peak_rss_bytes()
    begin, worked = time.perf_counter(), time.process_time()
    frame = run()
    seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    grown = peak_rss_bytes() - before
    size = frame.estimated_size() if isinstance(frame, pl.DataFrame) else int(frame.memory_usage(deep=False).sum())
    print(seconds, size, grown, worked)


def compare(path: Path, rows: int) -> None:
    """Read `path` with every reader, three times each, interleaved; print the table and the ratio."""
    best: dict[str, tuple[float, ...]] = {}
    worked: dict[str, float] = {}
    for _ in range(3):
        for reader in READERS:
            command = [sys.executable, __file__, "--reader", reader, "--path", str(path)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            result = (float(out[0]), float(out[1]), float(out[2]))
            best[reader] = min(best.get(reader, result), result)
            worked[reader] = min(worked.get(reader, float("inf")), float(out[3]))
    print(f"\n{path.suffix[1:]}: {rows:,} rows, {path.stat().st_size / 1e6:,.0f} MB on disk")
    print(f"{'reader':8} {'seconds':>8} {'of CPU':>8} {'Mrows/s':>8} {'peak / frame':>13}")
    for reader, (seconds, size, grown) in best.items():
        print(f"{reader:8} {seconds:8.2f} {worked[reader]:8.2f} {rows / seconds / 1e6:8.2f} {grown / size:13.2f}")
    wall, cpu = (100 * (x["prism"] / x["polars"] - 1) for x in ({r: b[0] for r, b in best.items()}, worked))
    print(f"validation costs {wall:+.0f} % over plain polars by the clock, {cpu:+.0f} % of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--csv-rows", type=int, default=5_000_000)
    parser.add_argument("--reader", choices=READERS)
    parser.add_argument("--path", type=Path)
    arguments = parser.parse_args()
    if arguments.reader:
        read_once(arguments.reader, arguments.path)
        return
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        for suffix, rows in (("parquet", arguments.rows), ("csv", arguments.csv_rows)):
            path = Path(folder) / f"flows.{suffix}"
            flows = make_flows(rows)
            flows.write_parquet(path) if suffix == "parquet" else flows.write_csv(path)
            del flows
            compare(path, rows)


if __name__ == "__main__":
    main()
