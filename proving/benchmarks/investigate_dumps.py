"""Thousands of Flight Recorder dumps: how long `prism investigate` takes and what memory it needs.

    python proving/benchmarks/investigate_dumps.py FOLDER [--ranks 8192]

The dumps are made: every rank has 40 calls in a group of all ranks and in one of eight, and one rank did not enter the
last call of its group of eight. The goal is 30 s and 2 GB.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import subprocess
import sys
import time
from pathlib import Path

from machine import describe_machine

ABSENT = 4321


def make_dumps(folder: Path, ranks: int) -> None:
    """One dump per rank, as NCCL's recorder writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    everyone = str(list(range(ranks)))
    for rank in range(ranks):
        first = rank // 8 * 8
        own = {"0": {"desc": "default_pg", "ranks": everyone}}
        own[str(1 + rank // 8)] = {"desc": "tp", "ranks": str(list(range(first, first + 8)))}
        entries = [_entry(group, number, rank) for number in range(20) for group in (0, 1)]
        if rank == ABSENT % ranks:
            entries = entries[:-1]
        document = {"version": "2.9", "pg_config": own, "pg_status": {}, "entries": entries}
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(document, protocol=2))


def _entry(group: int, number: int, rank: int) -> dict[str, object]:
    name = "0" if group == 0 else str(1 + rank // 8)
    waits = group == 1 and number == 19 and rank // 8 == ABSENT // 8
    return {
        "pg_id": group, "process_group": (name, "default_pg" if group == 0 else "tp"), "collective_seq_id": number,
        "op_id": number, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce", "input_sizes": [[4096, 4096]],
        "input_dtypes": ["BFloat16"], "time_created_ns": 10**18 + number * 10**9 + group * 10**8,
        "state": "scheduled" if waits else "completed", "frames": [{"name": "step", "filename": "train.py", "line": 9}],
    }  # fmt: skip


def main() -> None:
    """Make the dumps where they are not there yet, and time the command on them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=8192)
    given = parser.parse_args()
    if not (given.folder / f"dump_{given.ranks - 1}").exists():
        make_dumps(given.folder, given.ranks)
    print(describe_machine())
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "prism", "investigate", str(given.folder)], capture_output=True, text=True
    )
    wall = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(next((line for line in done.stdout.splitlines() if line.startswith("who:")), done.stderr[-300:]))
    cpu = used.ru_utime + used.ru_stime
    print(f"{given.ranks} dumps: {wall:.1f} s, of the processor {cpu:.1f} s, {used.ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
