"""A watch killed again and again beside one that is not.

    python proving/benchmarks/collect_kill.py [--every S] [--pace X]

Files of a scenario with a planted fault are dropped into a folder as time passes, for ten minutes. One watch of the
folder is killed (SIGKILL) every few seconds and started again; afterwards another reads the whole folder without a
break. Both must have read every file, and told the same findings.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

from prism.lab.scenarios import load_scenario, make_scenario
from prism.records import TOPOLOGY, write_table

_FILE_S = 2.0  # of the flows' own time
_EXIT_S = 600.0  # that the look which is under way may take on a busy machine


def start(folder: Path, state: Path, topology: Path, out: Path) -> subprocess.Popen[bytes]:
    """A watch of the folder that appends what it tells to a file."""
    command = [sys.executable, "-m", "prism", "watch", str(folder), "--topology", str(topology), "--state", str(state)]
    with out.open("ab") as lines, out.with_suffix(".err").open("ab") as errors:
        return subprocess.Popen(command, stdout=lines, stderr=errors)


def wait_until_read(process: subprocess.Popen[bytes], state: Path, num_files: int, seconds: float) -> int:
    """Wait until the state names every file, and stop the watch; returns how many it names."""
    end = time.monotonic() + seconds
    read = 0
    while time.monotonic() < end and read < num_files:
        time.sleep(1.0)
        read = len(json.loads((state / "state.json").read_text())["position"]) if (state / "state.json").exists() else 0
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    process.wait(_EXIT_S)
    return len(json.loads((state / "state.json").read_text())["position"])


def told(out: Path, last_ns: int) -> list[tuple[str, str, str]]:
    """Findings told, each once: what and who; not what the silence after the last flow makes."""
    lines = [json.loads(line) for line in out.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    return sorted(
        {
            (d["kind"], d["culprit"]["type"], d["culprit"]["id"])
            for d in lines
            if d["status"] == "firing" and d["end_ns"] <= last_ns
        }
    )


def main() -> None:
    """Run both watches and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="slow-gpu-64")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between kills")
    parser.add_argument("--pace", type=float, default=10.0, help="seconds that pass for each second of the flows")
    asked = parser.parse_args()
    run = make_scenario(load_scenario(asked.scenario), 0)
    shift = time.time_ns() - int(run.flows["start_ns"].min())  # type: ignore[call-overload]
    flows = run.flows.with_columns(pl.col("start_ns") + shift, pl.col("end_ns") + shift)
    parts = flows.with_columns((pl.col("end_ns") // int(_FILE_S * 1e9)).alias("_part")).sort("_part", "start_ns")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        write_table(run.topology, folder / "topology.csv", TOPOLOGY)
        kills, process, began = 0, None, time.monotonic()
        pieces = parts.partition_by("_part", maintain_order=True)
        for number, piece in enumerate(pieces):
            piece.drop("_part").write_parquet(folder / "x.tmp")
            (folder / "x.tmp").rename(folder / "in" / f"{number:04d}.parquet")
            until = time.monotonic() + asked.pace * _FILE_S
            while time.monotonic() < until:
                if process is None or time.monotonic() - began > asked.every:
                    if process is not None:
                        process.kill()
                        process.wait()
                        kills += 1
                    process = start(folder / "in", folder / "broken", folder / "topology.csv", folder / "broken.jsonl")
                    began = time.monotonic()
                time.sleep(0.2)
        assert process is not None
        read = wait_until_read(process, folder / "broken", len(pieces), _EXIT_S)
        whole = start(folder / "in", folder / "unbroken", folder / "topology.csv", folder / "unbroken.jsonl")
        read_whole = wait_until_read(whole, folder / "unbroken", len(pieces), _EXIT_S)
        last_ns = int(flows.select(pl.col("end_ns").max()).item())
        one, other = (told(folder / f"{name}.jsonl", last_ns) for name in ("broken", "unbroken"))
        print(f"{kills} kills; files read {read} and {read_whole} of {len(pieces)}")
        print(f"planted:  {[(f['kind'], f['culprit']['type'], f['culprit']['id']) for f in run.truth['faults']]}")
        print(f"killed:   {one}\nunbroken: {other}\n{'equal' if one == other else 'DIFFERENT'}")
        errors = (folder / "broken.err").read_text()
        print(f"tracebacks: {errors.count('Traceback')}")


if __name__ == "__main__":
    main()
