"""Jobs of stock frameworks on namespace hosts, their packets captured and diagnosed: what is right.

    sudo python proving/benchmarks/observe_stock.py --output /tmp/stock

The programs in `proving/benchmarks/stock` are those of the frameworks' tutorials (Hugging Face's Trainer, Accelerate,
Lightning, torch's own FSDP, pipelining and tensor parallelism); they run two at a time, one rank a host, over gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.collect import read_packets
from prism.collect.assembler import BurstConfig
from prism.lab.testbed.cpu_share import run_first
from prism.lab.testbed.lab import capture_packets, why_no_lab
from prism.lab.testbed.namespaces import Namespaces
from prism.observe.diagnose import diagnose

PROGRAMS = Path(__file__).with_name("stock")
HOSTS = 4  # of each job
LINK_KBIT = 2_000_000
PATIENCE_S = 600


@dataclass(frozen=True, slots=True)
class Job:
    """A program, how it is called, and its layout."""

    name: str
    program: str
    layout: dict[str, int]
    variables: dict[str, str] = field(default_factory=dict)


JOBS = (
    Job("Trainer", "hf_trainer", {"dp": 4}),
    Job("pipeline of 4", "torch_pipeline", {"pp": 4}, {"PIPELINE": "4"}),
    Job("Accelerate FSDP", "accelerate_fsdp", {"dp": 4}),
    Job("pipeline of 2, DDP", "torch_pipeline", {"dp": 2, "pp": 2}, {"PIPELINE": "2"}),
    Job("Lightning", "lightning_ddp", {"dp": 4}),
    Job("HSDP", "torch_fsdp", {"dp": 4}, {"REPLICAS": "2"}),
    Job("Trainer, accumulating", "hf_trainer", {"dp": 4}, {"ACCUMULATE": "3"}),
    Job("tensor of 2, FSDP", "torch_tensor_parallel", {"dp": 2, "tp": 2}, {"TENSOR": "2"}),
    Job("FSDP", "torch_fsdp", {"dp": 4}),
    Job("tensor of 4", "torch_tensor_parallel", {"tp": 4}, {"TENSOR": "4"}),
)


def main() -> None:
    """Run the jobs two at a time, or score what an earlier run left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for captures; scored again where it is full")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", default="", help="pairs of jobs with this word in their names")
    options = parser.parse_args()
    if problem := why_no_lab():
        sys.exit(f"observe_stock: {problem}")
    right = dict.fromkeys(("hosts", "layout", "steps"), 0)
    print(f"{'job':24}{'hosts':>7}{'layout':>30}{'step, ms':>10}{'found':>10}{'off, %':>9}  findings")
    pairs = [pair for pair in zip(JOBS[::2], JOBS[1::2], strict=True) if any(options.only in job.name for job in pair)]
    for pair in pairs:
        folder = options.output / "-".join(job.name.replace(" ", "_").replace(",", "") for job in pair)
        if not (folder / "flows.parquet").exists():
            run_pair(pair, folder, options.steps)
        for line, scores in score_pair(pair, folder):
            print(line, flush=True)
            right = {key: right[key] + scores[key] for key in right}
    print(", ".join(f"{key} {value} of {2 * len(pairs)}" for key, value in right.items()))


def run_pair(pair: tuple[Job, ...], folder: Path, steps: int) -> None:
    """Two jobs beside each other, captured until both have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(HOSTS * len(pair)))
        for host in network.hosts:
            network.slow(host, LINK_KBIT)
        stack.enter_context(capture_packets(network.bridge, folder / "capture.pcap"))
        ranks = []
        for number, job in enumerate(pair):
            hosts = network.hosts[number * HOSTS :][:HOSTS]
            for rank, host in enumerate(hosts):
                words = [word.format(host=host) for word in network.prefix]
                environment = os.environ | job.variables | {
                    "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(HOSTS), "LOCAL_WORLD_SIZE": "1",
                    "NODE_RANK": str(rank), "GROUP_RANK": str(rank), "MASTER_ADDR": network.addresses[hosts[0]],
                    "MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
                    "STEPS": str(steps), "STEPS_FILE": str(folder / f"job-{number}-{rank}.jsonl"),
                    "HF_HUB_OFFLINE": "1", "TORCHELASTIC_RUN_ID": "1",
                }  # fmt: skip
                with (folder / f"job-{number}-{rank}.log").open("wb") as log:
                    program = PROGRAMS / f"{job.program}.py"
                    ranks.append(subprocess.Popen([*words, sys.executable, str(program)], env=environment, stdout=log,
                                                  stderr=log, start_new_session=True))  # fmt: skip
                run_first(ranks[-1].pid)
        stack.callback(lambda: [process.kill() for process in ranks])
        codes = [process.wait(timeout=PATIENCE_S) for process in ranks]
        if any(codes):
            sys.exit(f"observe_stock: a rank failed; see the logs in {folder}")
    addresses = {job.name: [network.addresses[h] for h in network.hosts[i * HOSTS :][:HOSTS]]
                 for i, job in enumerate(pair)}  # fmt: skip
    (folder / "addresses.json").write_text(json.dumps(addresses))
    read_packets(folder / "capture.pcap", BurstConfig(gap_ns=20_000_000)).flows.write_parquet(folder / "flows.parquet")
    (folder / "capture.pcap").unlink()


def score_pair(pair: tuple[Job, ...], folder: Path) -> list[tuple[str, dict[str, bool]]]:
    """A line for each job, and what is right of it."""
    addresses = json.loads((folder / "addresses.json").read_text())
    diagnosis = diagnose(pl.read_parquet(folder / "flows.parquet"))
    lines = []
    for number, job in enumerate(pair):
        wanted = set(addresses[job.name])
        found = next((j for j in diagnosis.jobs if wanted & set(j.endpoints)), None)
        if found is None:
            lines.append((f"{job.name:24}  no job", {"hosts": False, "layout": False, "steps": False}))
            continue
        layout = {k: getattr(found.layout, k).value for k in ("dp", "pp", "tp", "cp", "ep")}
        short = " ".join(f"{k} {v}" for k, v in layout.items() if v != 1)
        ms, true_ms = compare_steps(found.steps["start_ns"].to_numpy(), read_steps(folder, f"job-{number}", HOSTS))
        off = abs(ms - true_ms) / true_ms * 100
        told = [f"{f.kind} {f.culprit.id}" for f in diagnosis.findings if f.job == found.id]
        scores = {"hosts": wanted == set(found.endpoints), "steps": off <= 0.3,
                  "layout": all(layout[k] == job.layout.get(k, 1) for k in ("dp", "pp", "tp"))}  # fmt: skip
        lines.append((f"{job.name:24}{'yes' if scores['hosts'] else 'NO':>7}{short:>24}"
                      f"{'yes' if scores['layout'] else 'NO':>6}{true_ms:10.1f}{ms:10.1f}{off:9.2f}  "
                      f"{found.life.state} {found.steps.height} {'; '.join(told)}", scores))  # fmt: skip
    return lines


def read_steps(folder: Path, name: str, hosts: int) -> NDArray[np.int64]:
    """When each step began: for the first rank that began it."""
    files = [folder / f"{name}-{rank}.jsonl" for rank in range(hosts)]
    begins = [
        [json.loads(line)["start_ns"] for line in file.read_text().splitlines() if line.endswith("}")] for file in files
    ]
    return np.array([min(step) for step in zip(*begins, strict=False)], np.int64)


def compare_steps(found: NDArray[np.int64], true: NDArray[np.int64]) -> tuple[float, float]:
    """The mean time from one step to the next in ms, as found and as it was in that time, its first steps left out."""
    if len(found) < 5:
        return float("nan"), float(np.diff(true[3:]).mean()) / 1e6
    found = found[3:]
    first, last = (int(np.argmin(np.abs(true - moment))) for moment in (found[0], found[-1]))
    return float(np.diff(found).mean()) / 1e6, float(true[last] - true[first]) / max(last - first, 1) / 1e6


if __name__ == "__main__":
    main()
