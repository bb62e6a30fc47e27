"""Chakra traces of a graph, run by SimGrid, beside Prism's own solution.

Run: apt-get install libsimgrid-dev   (Debian; gives smpirun and its replay program)
     python proving/benchmarks/simulate_simgrid.py [--keep FOLDER]

A job (pipeline x data x tensor parallel, one stream per rank) is exported as Chakra traces. The traces alone are turned
into SimGrid's time-independent actions: compute, messages, and every collective as a ring of messages. SimGrid places
each rank on a host with a link of its own. Prism solves the same graph with the same link: a ring of n ranks takes its
steps one after the other. SimGrid is run twice: with the plain fluid model, and as it comes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent))
from machine import describe_machine
from prism.simulate import Graph, GraphBuilder, SolveConfig, export_chakra, solve

GB_PER_S, HOP_US = 40.0, 5.0  # one way over one link; a message crosses two links
REPLAY = "simgrid/smpireplaymain"
PLAIN = ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0", "network/latency-factor:1",
         "network/bandwidth-factor:1", "network/weight-S:0", "smpi/bw-factor:1", "smpi/lat-factor:1")  # fmt: skip
ALWAYS = ("smpi/send-is-detached-thresh:0", "smpi/async-small-thresh:0")  # a send ends when its receiver has it
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="h" suffix="" radical="0-{last}" speed="1Gf" bw="{gb}GBps" lat="{us}us"/>
</platform>
"""
_STEPS = {0: 2, 2: 1, 7: 1}  # Chakra's number of all-reduce, all-gather, reduce-scatter: passes around the ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Degrees of a pipelined job."""

    pp: int
    dp: int
    tp: int
    microbatches: int


@dataclass(frozen=True, slots=True)
class RingCosts:
    """Every step of a ring and every message: two links' latency, and its bytes over one link."""

    def place(self, hosts: Sequence[int], locals_: Sequence[int]) -> Hashable:
        """Only the size of a group matters."""
        return len(hosts)

    def price(
        self, kinds: Sequence[str], sizes: np.ndarray, placement_index: np.ndarray, placements: Sequence[Hashable]
    ) -> np.ndarray:
        """Nanoseconds of each transfer."""
        ranks = np.array(placements, float)[placement_index]
        passes = np.array([{"all_reduce": 2.0, "send": 0.0, "recv": 0.0}.get(kind, 1.0) for kind in kinds])
        steps = np.where(passes > 0, passes * (ranks - 1), 1.0)
        chunk = np.where(passes > 0, np.ceil(sizes / ranks), sizes)
        return np.rint(steps * (2 * HOP_US * 1000 + chunk / GB_PER_S)).astype(np.int64)


def main() -> None:
    """Print both times for a few jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="leave traces and actions in this folder")
    keep = parser.parse_args().keep
    program = find_replay()
    if program is None:
        raise SystemExit("SimGrid is not here; install Debian's libsimgrid-dev")
    print(f"machine: {describe_machine()} (simulated times do not depend on it)\n")
    print(
        f"{'pp x dp x tp, micro-batches':<30}{'ranks':>6}{'Prism ms':>12}{'SimGrid ms':>12}{'':>9}{'as it comes':>12}"
    )
    for job in (Job(pp=1, dp=8, tp=1, microbatches=1), Job(pp=4, dp=1, tp=1, microbatches=8),
                Job(pp=1, dp=4, tp=4, microbatches=2), Job(pp=4, dp=4, tp=2, microbatches=8)):  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            ours, plain, default = compare(job, keep or Path(folder), program)
        name = f"{job.pp} x {job.dp} x {job.tp}, {job.microbatches}"
        ranks = job.pp * job.dp * job.tp
        print(
            f"{name:<30}{ranks:>6}{ours:>12.3f}{plain:>12.3f}{100 * (plain / ours - 1):>+8.2f}%"
            f"{default:>12.3f} {100 * (default / ours - 1):+.1f}%"
        )


def compare(job: Job, folder: Path, program: Path) -> tuple[float, float, float]:
    """Milliseconds by Prism, by SimGrid's plain fluid model, and by SimGrid as it comes."""
    graph = build_job(job)
    traces = export_chakra(graph, folder / "chakra")
    groups = json.loads((folder / "chakra" / "comm_groups.json").read_text())
    write_actions(traces, groups, folder)
    solution = solve(graph, RingCosts(), SolveConfig())
    return (
        solution.total_ns / 1e6,
        replay(folder, len(traces), program, (*ALWAYS, *PLAIN)),
        replay(folder, len(traces), program, ALWAYS),
    )


def build_job(job: Job) -> Graph:
    """All forwards, then all backwards of a pipeline; tensor sums in every stage, a data-parallel sum at the end."""
    builder = GraphBuilder("job")
    for stage in range(job.pp):
        program = builder.program()
        for direction, slower in ((1, 1), (-1, 2)):
            first, last = (0, job.pp - 1) if direction == 1 else (job.pp - 1, 0)
            for batch in range(job.microbatches):
                if stage != first:
                    program.recv("pp", 16 * 2**20, peer=stage - direction)
                program.compute("layers", slower * (2_000_000 + 100_000 * stage + 10_000 * batch))
                if job.tp > 1:
                    program.all_reduce("tp", 32 * 2**20)
                if stage != last:
                    program.send("pp", 16 * 2**20, peer=stage + direction)
        if job.dp > 1:
            program.all_reduce("dp", 512 * 2**20)
    ranks = np.arange(job.pp * job.dp * job.tp)
    grid = ranks.reshape(job.pp, job.dp, job.tp)
    builder.ranks(ranks, ranks // (job.dp * job.tp), ranks, np.zeros_like(ranks))
    for slot, axis in (("pp", 0), ("dp", 1), ("tp", 2)):
        builder.groups(slot, np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis]))
    return builder.build()


def write_actions(traces: Sequence[Path], groups: dict[str, list[int]], folder: Path) -> None:
    """SimGrid's actions of every rank, its platform and the place of each rank."""
    for rank, trace in enumerate(traces):
        lines = [f"{rank} init", *list_actions(rank, trace, groups), f"{rank} finalize"]
        (folder / f"actions.{rank}").write_text("\n".join(lines) + "\n")
    (folder / "actions").write_text("\n".join(str(folder / f"actions.{r}") for r in range(len(traces))) + "\n")
    (folder / "hosts").write_text("\n".join(f"h{r}" for r in range(len(traces))) + "\n")
    (folder / "platform.xml").write_text(PLATFORM.format(last=len(traces) - 1, gb=GB_PER_S, us=HOP_US))


def list_actions(rank: int, trace: Path, groups: dict[str, list[int]]) -> Iterator[str]:
    """The actions of one Chakra trace in the order of its nodes, which is that of its one stream."""
    for node in read_chakra(trace):
        if node["type"] == 4:
            yield f"{rank} compute {node['duration_ns']}"  # 1 Gflop/s: one flop per nanosecond
        elif node["type"] == 5:
            yield f"{rank} send {node['comm_dst']} 1 {node['comm_size']} 6"
        elif node["type"] == 6:
            yield f"{rank} recv {node['comm_src']} 1 {node['comm_size']} 6"
        else:
            members = groups[node["pg_name"]]
            at, n = members.index(rank), len(members)
            after, before = members[(at + 1) % n], members[at - 1]
            chunk = -(-node["comm_size"] // n)
            for _ in range(_STEPS[node["comm_type"]] * (n - 1)):
                yield f"{rank} isend {after} 2 {chunk} 6"
                yield f"{rank} recv {before} 2 {chunk} 6"
                yield f"{rank} wait {rank} {after} 2"


def read_chakra(path: Path) -> Iterator[dict]:
    """The nodes of a trace: messages in a row, each after its length; the first is the metadata."""
    data, at, first = path.read_bytes(), 0, True
    while at < len(data):
        size, at = _varint(data, at)
        if not first:
            yield _node(data[at : at + size])
        at, first = at + size, False


def _node(data: bytes) -> dict:
    found: dict = {"comm_type": 0}
    for field, value in _fields(data):
        if field == 3:
            found["type"] = value
        elif field == 10:
            attribute = dict(_fields(value))
            name = attribute.pop(1).decode()
            only = next(iter(attribute.values()), 0)
            found[name] = only.decode() if isinstance(only, bytes) else only
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value, at = _varint(data, at)
        if key & 7 == 2:
            yield key >> 3, data[at : at + value]
            at += value
        else:
            yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def find_replay() -> Path | None:
    """SimGrid's replay program, where it is installed."""
    if shutil.which("smpirun") is None:
        return None
    return next(Path("/usr/lib").glob(f"*/{REPLAY}"), None)


def replay(folder: Path, ranks: int, program: Path, settings: Sequence[str]) -> float:
    """Milliseconds that SimGrid takes for the actions in a folder."""
    command = ["smpirun", "-np", str(ranks), "-hostfile", "hosts", "-platform", "platform.xml", "-replay", "actions"]
    command += [str(program), *(f"--cfg={setting}" for setting in settings)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    times = re.findall(r"Simulation time ([\d.]+)", result.stdout + result.stderr)
    if not times:
        raise SystemExit(f"SimGrid did not finish: {(result.stdout + result.stderr).strip().splitlines()[-1:]}")
    return float(times[-1]) * 1000


if __name__ == "__main__":
    main()
