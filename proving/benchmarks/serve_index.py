"""The history of many supervised runs: how long the first index takes, a second look, a search, and the memory.

    python proving/benchmarks/serve_index.py                    100,000 runs
    python proving/benchmarks/serve_index.py --runs 10000

Each run has a state, decisions and one attempt of 20 steps, as `prism supervise` writes them. Times are of the
library and the index in one process, without HTTP; "first documents" are those that the first page asks for.
The second look finds folders in which nothing changed for five seconds; `prism serve` waits ten minutes for that.
Where DuckDB is installed (pip install duckdb), the same rows go into both databases in batches of 500, as the index
writes them, and both answer the questions of the History page: that is why the index is SQLite.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

from machine import describe_machine
from prism.serve.folder import Folder, ScanLimits
from prism.serve.history import Asked, HistoryConfig, HistoryIndex
from prism.serve.history.queries import find_days, find_entries
from prism.serve.library import Library
from prism.serve.views.cluster import describe_cluster
from prism.serve.views.datacenter import Price, describe_overview
from prism.serve.views.history import search

EPOCH_S = 1_780_000_000


def make_runs(folder: Path, num_runs: int) -> None:
    """Runs of two hosts each, one every minute."""
    for number in range(num_runs):
        place = folder / f"{number // 1_000:04d}" / f"run-{number:06d}"
        steps = place / "attempts" / "0001"
        steps.mkdir(parents=True)
        begin = EPOCH_S + 60 * number
        hosts = [f"node-{number % 997:03d}", f"node-{(number + 1) % 997:03d}"]
        state = {
            "phase": "ended", "outcome": "done", "outcome_text": "done", "attempt": 1, "hosts": hosts, "best_step": 20,
            "saved_steps": [20], "num_rollbacks": 0, "skip": [], "book": {"records": {}}, "failures": [],
        }  # fmt: skip
        (place / "state.json").write_text(json.dumps({"schema": "prism.supervise/1", "state": state}))
        launch = {"action": "Launch", "hosts": hosts, "num_hosts": 2, "excluded": [], "skip": [], "attempt": 1}
        line = {"time": begin, "event": {"now_s": 0, "kind": "Tick"}, "actions": [launch]}
        (place / "decisions.jsonl").write_text(json.dumps(line) + "\n")
        lines = ({"kind": "step", "time": begin + step, "step": step, "loss": 2.0} for step in range(1, 21))
        (steps / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def measure(folder: Path, state: Path) -> None:
    """Look, index, look again, ask."""
    library = Library(Folder(folder, ScanLimits(files=1_000_000, quiet_s=5.0)))
    index = HistoryIndex(HistoryConfig(state=state, keep_days=100_000))
    _tell("first look at the folder", library.refresh)
    _tell("index of everything", lambda: index.update(library.readings, library.load))
    _tell("second look", library.refresh)
    _tell("index, nothing changed", lambda: index.update(library.readings, library.load))
    _tell(
        "first documents",
        lambda: (describe_overview(library.snapshot, "x", Price()), describe_cluster(library.snapshot)),
    )
    _tell("newest 100 of the history", lambda: find_entries(index, Asked()))
    _tell("all days", lambda: find_days(index, Asked()))
    _tell("search of a host", lambda: search(index, "node-042"))
    _tell("history of one host", lambda: find_entries(index, Asked(host="node-042")))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows, size = find_entries(index, Asked()).total, (state / "history.sqlite").stat().st_size
    print(f"rows {rows:,}; index {size / 1e6:.0f} MB; memory at most {peak:,.0f} MB", flush=True)
    compare_databases(index, state)


INSERTS = 500  # rows in a transaction
CHANGES = 200  # sources that change one by one, as a run that is under way does every second
DAYS = (
    "SELECT until_ns // 86400000000000 AS day, count(DISTINCT job), median(step_s), median(goodput) FROM entry "
    "GROUP BY day ORDER BY day DESC LIMIT 400"
)
NEWEST = "SELECT * FROM entry ORDER BY until_ns DESC, id DESC LIMIT 100"
OF_HOST = "SELECT * FROM entry WHERE id IN (SELECT entry FROM mention WHERE host = 'node-042') ORDER BY until_ns DESC"
WORDS = "SELECT * FROM entry WHERE words LIKE '%node-042%' ORDER BY until_ns DESC LIMIT 20"


def compare_databases(index: HistoryIndex, folder: Path) -> None:
    """The same rows and questions in SQLite and in DuckDB."""
    if find_spec("duckdb") is None:
        print("DuckDB is not installed: no comparison")
        return
    import sqlite3

    import duckdb

    from prism.serve.history.database import TABLES, Median

    entries = index.connection.execute("SELECT * FROM entry").fetchall()
    mentions = index.connection.execute("SELECT host, entry FROM mention").fetchall()
    lite = sqlite3.connect(folder / "peer.sqlite", isolation_level=None)
    lite.execute("PRAGMA journal_mode = WAL")
    lite.execute("PRAGMA synchronous = NORMAL")
    lite.executescript(TABLES)
    lite.create_aggregate("median", 1, Median)  # type: ignore[arg-type]
    duck = duckdb.connect(str(folder / "peer.duckdb"))
    for table in TABLES.replace(" WITHOUT ROWID", "").split(";")[:-1]:
        duck.execute(table.replace("INTEGER", "BIGINT"))
    _ask(_Database("SQLite", lite.execute, lite.executemany, DAYS.replace("//", "/")), entries, mentions)
    _ask(_Database("DuckDB", duck.execute, _many(duck), DAYS), entries, mentions)
    for name in ("peer.sqlite", "peer.duckdb"):
        print(f"{name}: {(folder / name).stat().st_size / 1e6:.0f} MB")


@dataclass(frozen=True)
class _Database:
    """One of the two, and how it is spoken to."""

    name: str
    run: Callable[..., Any]
    many: Callable[[str, list[tuple[Any, ...]]], object]
    days: str


def _ask(database: _Database, entries: list[tuple[Any, ...]], mentions: list[tuple[Any, ...]]) -> None:
    name, run = database.name, database.run
    _tell(f"{name}: {len(entries):,} rows in batches", lambda: _fill(run, database.many, entries, mentions))
    _tell(f"{name}: {CHANGES} rows changed one by one", lambda: _change(run, entries))
    for what, asked in (("newest 100", NEWEST), ("days", database.days), ("a host", OF_HOST), ("words", WORDS)):
        _tell(f"{name}: {what}", partial(lambda sql: run(sql).fetchall(), asked))


def _many(duck: Any) -> Callable[[str, list[tuple[Any, ...]]], None]:
    """Rows into DuckDB by way of Arrow, its quickest way in; its own executemany takes a millisecond a row."""

    def insert(sql: str, rows: list[tuple[Any, ...]]) -> None:
        frame = pl.DataFrame(rows, orient="row", infer_schema_length=None).to_arrow()  # noqa: F841 (DuckDB finds it)
        duck.execute(f"INSERT INTO {sql.split()[2]} SELECT * FROM frame")

    return insert


def _fill(run: Any, many: Any, entries: list[tuple[Any, ...]], mentions: list[tuple[Any, ...]]) -> None:
    for table, rows in (("entry", entries), ("mention", mentions)):
        holes = ", ".join("?" * len(rows[0]))
        for begin in range(0, len(rows), INSERTS):
            run("BEGIN")
            many(f"INSERT INTO {table} VALUES ({holes})", rows[begin : begin + INSERTS])
            run("COMMIT")


def _change(run: Any, entries: list[tuple[Any, ...]]) -> None:
    for row in entries[-CHANGES:]:
        run("BEGIN")
        run("DELETE FROM entry WHERE id = ?", (row[0],))
        run(f"INSERT INTO entry VALUES ({', '.join('?' * len(row))})", row)
        run("COMMIT")


def _tell(what: str, work: Callable[[], object]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what}: {wall:.2f} s, {cpu:.3f} s of CPU", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="folder for the runs: kept, and taken as it is where it exists")
    options = parser.parse_args()
    print(f"machine: {describe_machine()}; {options.runs:,} runs", flush=True)
    with tempfile.TemporaryDirectory() as name:
        runs = options.folder or Path(name) / "runs"
        if not runs.exists():
            make_runs(runs, options.runs)
        measure(runs, Path(name) / "state")


if __name__ == "__main__":
    main()
