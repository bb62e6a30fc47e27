"""Jobs of torch over gloo that end, are killed, stopped or slowed on namespace hosts: what `prism diagnose` says.

    sudo python benchmarks/observe_trials.py --output /tmp/trials

Each trial runs a program of `benchmarks/stock` on four hosts, beside another job on four others that goes on, and
keeps the packets that tcpdump captured. They are diagnosed with the settings as shipped: whole, as if only one of two
switches exported, and as if the other fell silent in the middle.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from prism.collect import read_packets
from prism.observe.diagnose import diagnose
from prism.testbed.cpu_share import run_first
from prism.testbed.lab import capture_packets, why_no_lab
from prism.testbed.namespaces import Namespaces

PROGRAMS = Path(__file__).with_name("stock")
HOSTS = 4  # of each job
LINK_KBIT = 1_000_000
SLOW_KBIT = 40_000
HARMED, FROM = 2, 25  # which host of the first job, and from which step on
SLOWER_S = 0.3
AFTER_S = 15.0  # for which the capture goes on after a job has ended or stopped
PATIENCE_S = 300
SEEN = ("tcpdump", "one leaf", "falls silent")


@dataclass(frozen=True, slots=True)
class Trial:
    """A program and what happens to it; `beside` is another one on the same hosts."""

    program: str
    harm: str  # ended, killed, stopped, slow_rank or slow_nic
    beside: str = ""
    steps: int = 50

    @property
    def name(self) -> str:
        """Its folder."""
        return "-".join(x for x in (self.program.removeprefix("torch_"), self.harm, self.beside) if x)


TRIALS = (
    *(Trial(p, h) for h in ("ended", "killed", "stopped", "slow_rank", "slow_nic")
      for p in ("torch_ddp", "torch_fsdp", "torch_pipeline")),
    Trial("torch_ddp", "ended", "torch_fsdp"),
    Trial("torch_ddp", "ended", "torch_ddp"),
    Trial("torch_ddp", "slow_rank", "torch_pipeline"),
)  # fmt: skip


def main() -> None:
    """Run the trials that have not run yet, and score all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for captures; scored again where it is full")
    parser.add_argument("--only", default="", help="trials with this word in their names")
    options = parser.parse_args()
    trials = [trial for trial in TRIALS if options.only in trial.name]
    counts: Counter[str] = Counter()
    for trial in trials:
        folder = options.output / trial.name
        if not (folder / "truth.json").exists():
            if problem := why_no_lab():
                sys.exit(f"observe_trials: {problem}")
            run_trial(trial, folder)
        for seen in SEEN:
            verdict, told = score(trial, folder, seen)
            counts[verdict] += 1
            print(f"{trial.name:30}{seen:14}{verdict:9}{told}", flush=True)
    print(", ".join(f"{verdict} {num}" for verdict, num in counts.most_common()))


def read_as(trial: Trial, folder: Path, seen: str) -> pl.DataFrame:
    """FLOWS of a trial: of all packets, or without those inside the second leaf, from the start or the middle on."""
    stored = folder / "flows.parquet"
    if not stored.exists():
        read_packets(folder / "capture.pcap").flows.write_parquet(stored)
    flows = pl.read_parquet(stored)
    second = {address for hosts in _read_truth(folder)["addresses"].values() for address in hosts[HOSTS // 2 :]}
    unseen = pl.col("src").is_in(second) & pl.col("dst").is_in(second)
    middle = (flows["start_ns"].min() + flows["end_ns"].max()) // 2  # type: ignore[operator]
    since = {"tcpdump": None, "one leaf": 0, "falls silent": middle}[seen]
    return flows if since is None else flows.filter(~unseen | (pl.col("start_ns") < since))


def score(trial: Trial, folder: Path, seen: str) -> tuple[str, str]:
    """Whether what is said of the job is right, unknown or wrong; and what is said.

    Wrong are a culprit that was not harmed, a job that ended and did not, or did not end and did.
    """
    addresses = _read_truth(folder)["addresses"]
    flows = read_as(trial, folder, seen)
    found = diagnose(flows) if flows.height else None
    jobs = [] if found is None else [job for job in found.jobs if set(job.endpoints) & set(addresses["own"])]
    if found is None or not jobs:
        return "unknown", "no job"
    harmed = addresses["own"][HARMED] if trial.harm != "ended" else ""
    told = [f for f in found.findings if f.culprit.type != "job" and f.kind != "contention"]
    wrong = [f for f in told if not harmed or harmed not in f.culprit.id or f.job not in {job.id for job in jobs}]
    broke_off = trial.harm in ("killed", "stopped")
    job = max(jobs, key=lambda job: len(job.endpoints))
    wrong_state = job.life.state in (("ended", "paused") if broke_off else ("stopped",)) and job.visible.steps
    named = any(f not in wrong for f in told) or (broke_off and job.life.state == "stopped")
    right = named if harmed else job.visible.steps and job.visible.comparable
    said = "; ".join(f"{f.kind} {f.culprit.id} {f.score:.2f}" for f in found.findings)
    text = f"{len(job.endpoints)} hosts {job.steps.height:4} steps {job.life.state:8} {said}"
    return "WRONG" if wrong or wrong_state else "right" if right else "unknown", text


def _read_truth(folder: Path) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    return truth


def run_trial(trial: Trial, folder: Path) -> None:
    """The job, and one that goes on on other hosts or on the same; captured until some time after its end."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(2 * HOSTS))
        for host in network.hosts:
            network.slow(host, LINK_KBIT)
        stack.enter_context(capture_packets(network.bridge, folder / "capture.pcap"))
        own, others = network.hosts[:HOSTS], network.hosts[HOSTS:]
        ranks = _start(stack, trial.program, own, network, folder, "own", trial.steps, 29400, trial.harm == "slow_rank")
        _start(stack, "torch_ddp", others, network, folder, "other", 1_000_000, 29400)
        beside = [] if not trial.beside else _start(
            stack, trial.beside, own, network, folder, "beside", trial.steps * 3 // 2, 29500)  # fmt: skip
        harmed_ns = _harm(trial, network, ranks, folder)
        for process in [] if trial.harm == "stopped" else [*ranks, *beside]:
            process.wait(timeout=PATIENCE_S)
        over_ns = time.time_ns()
        time.sleep(AFTER_S)
    addresses = {"own": [network.addresses[h] for h in own], "other": [network.addresses[h] for h in others]}
    truth = {"trial": asdict(trial), "addresses": addresses, "harmed_ns": harmed_ns, "over_ns": over_ns}
    (folder / "truth.json").write_text(json.dumps(truth))


def _start(
    stack: ExitStack, program: str, hosts: tuple[str, ...], network: Namespaces, folder: Path, name: str, steps: int,
    port: int, slow: bool = False,
) -> list[subprocess.Popen[bytes]]:  # fmt: skip
    """The ranks of a job, which are killed at the end of the stack."""
    ranks = []
    for rank, host in enumerate(hosts):
        words = [word.format(host=host) for word in network.prefix]
        environment = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": network.addresses[hosts[0]], "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1", "STEPS": str(steps), "STEPS_FILE": str(folder / f"{name}-{rank}.jsonl"),
            "PIPELINE": str(len(hosts)), "HF_HUB_OFFLINE": "1", "SLOWER_FROM": str(FROM),
            "SLOWER_S": str(SLOWER_S if slow and rank == HARMED else 0),
        }  # fmt: skip
        with (folder / f"{name}-{rank}.log").open("wb") as log:
            ranks.append(subprocess.Popen([*words, sys.executable, str(PROGRAMS / f"{program}.py")], env=environment,
                                          stdout=log, stderr=log, start_new_session=True))  # fmt: skip
        run_first(ranks[-1].pid)

    def end() -> None:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()

    stack.callback(end)
    return ranks


def _harm(trial: Trial, network: Namespaces, ranks: list[subprocess.Popen[bytes]], folder: Path) -> int:
    """Wait for the step, then do it; when that was, 0 if nothing is done from outside."""
    if trial.harm not in ("killed", "stopped", "slow_nic"):
        return 0
    lines, deadline = folder / "own-0.jsonl", time.monotonic() + PATIENCE_S
    while not lines.exists() or lines.read_bytes().count(b"\n") < FROM:
        if time.monotonic() > deadline or any(rank.poll() is not None for rank in ranks):
            sys.exit(f"observe_trials: a rank failed; see the logs in {folder}")
        time.sleep(0.05)
    time.sleep(0.1)  # in the middle of a step
    if trial.harm == "slow_nic":
        network.slow(network.hosts[HARMED], SLOW_KBIT)
    else:
        ranks[HARMED].send_signal(signal.SIGKILL if trial.harm == "killed" else signal.SIGSTOP)
    return time.time_ns()


if __name__ == "__main__":
    main()
