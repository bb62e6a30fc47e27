"""The history of many supervised runs: how long the first index takes, a second look, a search, and the memory.

    python benchmarks/serve_index.py                    100,000 runs
    python benchmarks/serve_index.py --runs 10000

Each run has a state, decisions and one attempt of 20 steps, as `prism supervise` writes them. Times are of the
library and the index in one process, without HTTP; "first documents" are those that the first page asks for.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

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
    library = Library(Folder(folder, ScanLimits(files=1_000_000)))
    index = HistoryIndex(HistoryConfig(state=state, keep_days=100_000))

    def tell(what: str, work: object) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()  # type: ignore[operator]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{what}: {wall:.2f} s, {cpu:.2f} s of CPU")

    tell("first look at the folder", library.refresh)
    tell("index of everything", lambda: index.update(library.readings, library.in_memory))
    tell("second look", library.refresh)
    tell("index, nothing changed", lambda: index.update(library.readings, library.in_memory))
    tell(
        "first documents",
        lambda: (describe_overview(library.snapshot, "x", Price()), describe_cluster(library.snapshot)),
    )
    tell("newest 100 of the history", lambda: find_entries(index, Asked()))
    tell("all days", lambda: find_days(index, Asked()))
    tell("search of a host", lambda: search(index, "node-042"))
    tell("history of one host", lambda: find_entries(index, Asked(host="node-042")))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows, size = find_entries(index, Asked()).total, (state / "history.sqlite").stat().st_size
    print(f"rows {rows:,}; index {size / 1e6:.0f} MB; memory at most {peak:,.0f} MB")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    options = parser.parse_args()
    print(f"machine: {describe_machine()}; {options.runs:,} runs")
    with tempfile.TemporaryDirectory() as name:
        make_runs(Path(name) / "runs", options.runs)
        measure(Path(name) / "runs", Path(name) / "state")


if __name__ == "__main__":
    main()
