"""Jobs of torch over gloo that end, are killed, stopped or slowed on namespace hosts: what `prism diagnose` says.

    sudo python proving/benchmarks/observe_trials.py --output /tmp/trials
    sudo python proving/benchmarks/observe_trials.py --output /tmp/trials --seeds 100-115

Each trial runs a program of `proving/benchmarks/stock` beside another job on other hosts that goes on, and keeps the
packets that tcpdump captured and the records that softflowd exported to nfcapd. Both are diagnosed with the settings as
shipped; packets also as if only one of two switches exported, and as if the other fell silent in the middle. A seed
draws the program, its size and what happens to it. The programs themselves log when each step was.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from observe_stock import compare_steps, read_steps
from prism.collect import read_packets
from prism.collect.flow_inputs import load_inputs
from prism.lab.testbed.cpu_share import run_first
from prism.lab.testbed.lab import capture_packets, export_flows, why_no_lab
from prism.lab.testbed.namespaces import Namespaces
from prism.observe.diagnose import MIXED, diagnose
from prism.observe.diagnosis import Diagnosis, JobDiagnosis

PROGRAMS = Path(__file__).with_name("stock")
LINK_KBIT = 1_000_000
AFTER_S = 12.0  # for which the capture goes on after a job has ended or stopped
PATIENCE_S = 300
OTHERS = 2  # hosts of the job that goes on
SEEN = ("tcpdump", "softflowd", "one leaf", "falls silent")
CLONE_NEWNET = 0x40000000
QUESTIONS = ("hosts", "layout", "state", "steps", "culprit")


@dataclass(frozen=True, slots=True)
class Trial:
    """A program and what happens to it; `beside` is another one on the same hosts, which may begin later."""

    program: str
    harm: str  # ended, killed, stopped, slow_rank, slow_kernels, slow_nic, again, joined
    beside: str = ""
    steps: int = 50
    hosts: int = 4
    harmed: int = 2  # which host
    since: int = 25  # from which step on
    strength: float = 1.0  # times the usual harm
    layout: dict[str, int] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    seed: int = -1

    @property
    def name(self) -> str:
        """Its folder."""
        seed = str(self.seed) if self.seed >= 0 else ""
        return "-".join(x for x in (seed, self.program.removeprefix("torch_"), self.harm, self.beside) if x)


TRIALS = (
    *(Trial(p, h, layout=layout, variables={"PIPELINE": "4"})
      for h in ("ended", "killed", "stopped", "slow_rank", "slow_nic")
      for p, layout in (("torch_ddp", {"dp": 4}), ("torch_fsdp", {"dp": 4}), ("torch_pipeline", {"pp": 4}))),
    Trial("torch_ddp", "ended", "torch_fsdp", layout={"dp": 4}),
    Trial("torch_ddp", "ended", "torch_ddp", layout={"dp": 4}),
    Trial("torch_ddp", "slow_rank", "torch_pipeline", layout={"dp": 4}),
)  # fmt: skip
HARMS = ("killed", "slow_rank", "ended", "stopped", "slow_kernels", "again", "slow_nic", "joined")


def draw(seed: int) -> Trial:
    """A trial of a program, size, harm and moment by chance; harms take turns, so that a few seeds have all."""
    rng = np.random.default_rng(seed)
    hosts = int(rng.choice([4, 6])) if rng.random() < 0.5 else int(rng.integers(3, 8))
    even = hosts + hosts % 2
    drawn = [
        ("torch_ddp", hosts, {"dp": hosts}, {}),
        ("hf_trainer", hosts, {"dp": hosts}, {"ACCUMULATE": str(rng.integers(1, 4))}),
        ("lightning_ddp", hosts, {"dp": hosts}, {}),
        ("torch_zero", hosts, {"dp": hosts}, {}),
        ("plain_sums", hosts, {"dp": hosts}, {"BUCKETS": str(rng.integers(1, 6))}),
        ("torch_fsdp", hosts, {"dp": hosts}, {"LAYERS": str(rng.integers(2, 7))}),
        ("accelerate_fsdp", hosts, {"dp": hosts}, {"LAYERS": str(rng.integers(2, 7))}),
        ("torch_fsdp", even, {"dp": even}, {"REPLICAS": "2"}),
        ("torch_pipeline", even, {"dp": even // 2, "pp": 2}, {"PIPELINE": "2"}),
        ("torch_pipeline", min(hosts, 5), {"pp": min(hosts, 5)}, {"PIPELINE": str(min(hosts, 5))}),
        ("torch_tensor_parallel", even, {"dp": even // 2, "tp": 2}, {"TENSOR": "2"}),
    ]  # fmt: skip
    program, hosts, layout, variables = drawn[int(rng.integers(len(drawn)))]
    variables["FORWARD_S"] = str(rng.choice([0.02, 0.03, 0.045]))
    variables["WIDTH"] = str(rng.choice([96, 128, 192]))
    if rng.random() < 0.3:
        variables[str(rng.choice(["SAVE_EVERY", "EVALUATE_EVERY"]))] = str(rng.integers(8, 15))
    harm = HARMS[seed % len(HARMS)]
    beside = str(rng.choice(["torch_ddp", "plain_sums", "torch_fsdp"])) if harm == "joined" else ""
    steps = int(rng.integers(32, 50))
    return Trial(program, harm, beside, steps, hosts, int(rng.integers(hosts)), steps // 2 + int(rng.integers(-4, 5)),
                 float(rng.choice([0.7, 1.0, 1.5])), layout, variables, seed)  # fmt: skip


def main() -> None:
    """Run the trials that have not run yet, and score all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for captures; scored again where it is full")
    parser.add_argument("--only", default="", help="trials with this word in their names")
    parser.add_argument("--seeds", default="", help="draw trials instead, such as 100-115")
    parser.add_argument("--seen", default=",".join(SEEN), help="ways in which records are seen")
    parser.add_argument("--no-score", action="store_true", help="only run them")
    parser.add_argument("--busy", action="store_true", help="ranks have no priority over other work of this machine")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    drawn = [draw(seed) for seed in range(int(first), int(last or first) + 1)] if first else TRIALS
    counts: Counter[tuple[str, str, str]] = Counter()
    for trial in (trial for trial in drawn if options.only in trial.name):
        folder = options.output / trial.name
        if not (folder / "truth.json").exists():
            if problem := why_no_lab():
                sys.exit(f"observe_trials: {problem}")
            _import_frameworks()
            run_trial(trial, folder, first=not options.busy)
        for seen in () if options.no_score else options.seen.split(","):
            verdicts, told = score(trial, folder, seen)
            counts.update((seen, question, verdict) for question, verdict in verdicts.items())
            marks = " ".join({"right": "+", "unknown": "?", "WRONG": "X"}[verdicts[q]] for q in QUESTIONS)
            print(f"{trial.name:40}{seen:14}{marks}  {told}", flush=True)
    for seen in options.seen.split(","):
        for question in QUESTIONS:
            told = ", ".join(f"{v} {counts[seen, question, v]}" for v in ("right", "unknown", "WRONG"))
            print(f"{seen:14}{question:10}{told}")


def read_as(folder: Path, seen: str) -> pl.DataFrame:
    """FLOWS of a trial: of all packets, or without those inside the second leaf, from the start or the middle on."""
    if seen == "softflowd":
        return load_inputs(folder / "nfcapd").flows
    stored = folder / "flows.parquet"
    if not stored.exists():
        read_packets(folder / "capture.pcap").flows.write_parquet(stored)
    flows = pl.read_parquet(stored)
    addresses = _read_truth(folder)["addresses"]
    second = [address for hosts in addresses.values() for address in hosts[len(addresses["own"]) // 2 :]]
    unseen = pl.col("src").is_in(second) & pl.col("dst").is_in(second)
    middle = (flows["start_ns"].min() + flows["end_ns"].max()) // 2  # type: ignore[operator]
    since = {"tcpdump": None, "one leaf": 0, "falls silent": middle}[seen]
    return flows if since is None else flows.filter(~unseen | (pl.col("start_ns") < since))


def score(trial: Trial, folder: Path, seen: str) -> tuple[dict[str, str], str]:
    """Which answers are right, unknown or wrong; and what is said."""
    addresses = _read_truth(folder)["addresses"]
    flows = read_as(folder, seen)
    found = diagnose(flows) if flows.height else None
    own = set(addresses["own"])
    jobs = [] if found is None else [job for job in found.jobs if set(job.endpoints) & own]
    if found is None or not jobs:
        return dict.fromkeys(QUESTIONS, "unknown"), "no job"
    job = max(jobs, key=lambda job: (len(job.endpoints), job.steps.height))
    exact = all(set(j.endpoints) == own for j in jobs) and len(jobs) == (2 if trial.beside else 1)
    verdicts = {
        "hosts": "right" if exact else "unknown" if all(set(j.endpoints) <= own for j in jobs) else "WRONG",
        "layout": _judge_layout(trial, job),
        "state": _judge_state(trial, job),
        "steps": _judge_steps(trial, job, folder),
        "culprit": _judge_culprit(trial, found, jobs, addresses),
    }
    if trial.beside and len(jobs) == 1 and verdicts["hosts"] == "unknown":
        # One job where there are two, unless it says that it may be several.
        verdicts["hosts"] = "unknown" if MIXED in jobs[0].notes else "WRONG"
    layout = " ".join(f"{k}{getattr(job.layout, k).value}" for k in ("dp", "pp", "tp") if getattr(job.layout, k).value)
    said = "; ".join(f"{f.kind} {f.culprit.id} {f.score:.2f}" for f in found.findings if f.job in {j.id for j in jobs})
    text = f"{len(jobs)} jobs {len(job.endpoints)} of {trial.hosts} hosts {layout} {job.layout.confidence:.2f}"
    return verdicts, f"{text}, {job.steps.height} of {trial.steps} steps {job.life.state} {said}"


def _judge_layout(trial: Trial, job: JobDiagnosis) -> str:
    layout = {degree: getattr(job.layout, degree).value for degree in ("dp", "pp", "tp")}
    if None in layout.values() or job.layout.confidence <= 0.5:
        return "unknown"
    return "right" if all(layout[d] == trial.layout.get(d, 1) for d in layout) else "WRONG"


def _judge_state(trial: Trial, job: JobDiagnosis) -> str:
    if not job.steps.height or trial.beside:
        return "unknown"
    return "right" if job.life.state == ("stopped" if trial.harm in ("killed", "stopped") else "ended") else "WRONG"


def _judge_steps(trial: Trial, job: JobDiagnosis, folder: Path) -> str:
    if job.steps.height < 5 or not job.visible.comparable or trial.beside:
        return "unknown"
    own = [job.steps["start_ns"].to_numpy()]
    true = [read_steps(folder, name, trial.hosts) for name in ("own", "again") if (folder / f"{name}-0.jsonl").exists()]
    if trial.harm == "slow_nic":  # Another silence than before may be the longest, and end the steps.
        true = [part for run in true for part in (run[: trial.since], run[trial.since :])]
    # Between two runs nothing is compared.
    pairs = [(own[0][(own[0] >= t[0] - 10**9) & (own[0] <= t[-1] + 10**9)], t) for t in true if len(t) > 5]
    off = [abs(ms / true_ms - 1) for ms, true_ms in (compare_steps(*pair) for pair in pairs)]
    return "right" if off and max(off) <= 0.01 else "WRONG"


def _judge_culprit(trial: Trial, found: Diagnosis, jobs: list[JobDiagnosis], addresses: dict[str, list[str]]) -> str:
    """Wrong is anybody who was not harmed, in any job; the first rank does hold all others up while it saves."""
    hurt = trial.harm not in ("ended", "again", "joined")
    harmed = addresses["own"][trial.harmed] if hurt else "nobody"
    saves = addresses["own"][:1] if "SAVE_EVERY" in trial.variables else []
    told = [f for f in found.findings if f.culprit.type != "job" and f.kind != "contention"]
    ids = {job.id for job in jobs}
    stage = {f"{job.id} {s}" for job in jobs for e, s in job.stages.stage.items()
             if found.traffic.endpoints["address"][int(e)] == harmed}  # fmt: skip
    wrong = [f for f in told if f.job not in ids or not ({harmed, *saves} & set(f.culprit.id.split(",")) or (
        f.culprit.type == "stage" and f"{f.job} {f.culprit.id}" in stage))]  # fmt: skip
    if wrong:
        return "WRONG"
    named = any(harmed in f.culprit.id.split(",") or f.culprit.type == "stage" for f in told)
    return "right" if named or not hurt else "unknown"


def _read_truth(folder: Path) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    return truth


def run_trial(trial: Trial, folder: Path, *, first: bool = True) -> None:
    """The job, and one that goes on on other hosts, and another on the same; captured until some time after its end."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(trial.hosts + OTHERS))
        for host in network.hosts:
            network.slow(host, LINK_KBIT)
        _receive(stack, folder / "nfcapd", port := 20_000 + os.getpid() % 10_000)
        stack.enter_context(export_flows(network.bridge, port, folder))
        stack.enter_context(capture_packets(network.bridge, folder / "capture.pcap"))
        run = _Runs(stack, trial, network, folder, first=first)
        own, others = network.hosts[: trial.hosts], network.hosts[trial.hosts :]
        run.start("plain_sums", others, "other", 1_000_000, 29400)
        ranks = run.start(trial.program, own, "own", trial.steps, 29400)
        beside = run.start(trial.beside, own, "beside", trial.steps * 3 // 2, 29500) if trial.beside and (
            trial.harm != "joined") else []  # fmt: skip
        harmed_ns = run.harm(ranks)
        if trial.harm == "joined":
            beside = run.start(trial.beside, own, "beside", trial.steps // 2, 29500)
        waited = [] if trial.harm == "stopped" else ranks
        if trial.harm == "again":
            waited = run.start(trial.program, own, "again", trial.since, 29600)
        for process in [*waited, *beside]:
            process.join(PATIENCE_S)
        over_ns = time.time_ns()
        time.sleep(AFTER_S)
    addresses = {"own": [network.addresses[h] for h in own], "other": [network.addresses[h] for h in others]}
    truth = {"trial": asdict(trial), "addresses": addresses, "harmed_ns": harmed_ns, "over_ns": over_ns}
    (folder / "truth.json").write_text(json.dumps(truth))


def _receive(stack: ExitStack, folder: Path, port: int) -> None:
    """nfcapd, which ends after softflowd has."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(["nfcapd", "-w", str(folder), "-p", str(port), "-b", "127.0.0.1", "-t", "3600"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)


class _Runs:
    """Starts the ranks of jobs in a trial, and harms them."""

    def __init__(self, stack: ExitStack, trial: Trial, network: Namespaces, folder: Path, *, first: bool) -> None:
        self._stack, self._trial, self._network, self._folder, self._first = stack, trial, network, folder, first

    def start(self, program: str, hosts: tuple[str, ...], name: str, steps: int, port: int) -> list[ForkProcess]:
        """The ranks of a job, which are killed at the end of the stack."""
        trial, network, ranks = self._trial, self._network, []
        for rank, host in enumerate(hosts):
            slow = trial.harm if name == "own" and rank == trial.harmed else ""
            variables = (trial.variables if name in ("own", "again") else {}) | {
                "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(hosts)), "LOCAL_WORLD_SIZE": "1",
                "NODE_RANK": str(rank), "GROUP_RANK": str(rank), "TORCHELASTIC_RUN_ID": "1",
                "MASTER_ADDR": network.addresses[hosts[0]], "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1", "STEPS": str(steps), "HF_HUB_OFFLINE": "1", "SLOWER_FROM": str(trial.since),
                "STEPS_FILE": str(self._folder / f"{name}-{rank}.jsonl"),
                "SLOWER_S": str(0.3 * trial.strength if slow == "slow_rank" else 0),
                "SLOWER_TIMES": str(1 + trial.strength if slow == "slow_kernels" else 1),
            }  # fmt: skip
            space = network.prefix[3].format(host=host)
            log = self._folder / f"{name}-{rank}.log"
            ranks.append(
                multiprocessing.get_context("fork").Process(target=_run_rank, args=(program, space, variables, log))
            )
            ranks[-1].start()
            if self._first:
                run_first(ranks[-1].pid or 0)

        def end() -> None:
            for process in ranks:
                process.kill()
            for process in ranks:
                process.join()

        self._stack.callback(end)
        return ranks

    def harm(self, ranks: list[ForkProcess]) -> int:
        """Wait for the step, then do it; when that was, 0 if nothing is done from outside."""
        trial = self._trial
        if trial.harm in ("ended", "slow_rank", "slow_kernels"):
            return 0
        lines, deadline = self._folder / "own-0.jsonl", time.monotonic() + PATIENCE_S
        while not lines.exists() or lines.read_bytes().count(b"\n") < trial.since:
            if time.monotonic() > deadline or any(rank.exitcode is not None for rank in ranks):
                sys.exit(f"observe_trials: a rank failed; see the logs in {self._folder}")
            time.sleep(0.05)
        time.sleep(0.1)  # in the middle of a step
        if trial.harm == "slow_nic":
            self._network.slow(self._network.hosts[trial.harmed], round(40_000 / trial.strength))
        elif trial.harm == "again":
            for rank in ranks:
                rank.kill()
        elif trial.harm != "joined":
            os.kill(ranks[trial.harmed].pid or 0, signal.SIGKILL if trial.harm == "killed" else signal.SIGSTOP)
        return time.time_ns()


def _import_frameworks() -> None:
    """Once for all ranks, which are forks of this process: imports take longer than most trials."""
    import accelerate  # noqa: F401
    import lightning  # noqa: F401
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401
    from transformers import GPT2LMHeadModel, Trainer  # noqa: F401


def _run_rank(program: str, space: str, variables: dict[str, str], log: Path) -> None:
    """Become a rank in a network namespace; torch was imported before the fork."""
    with Path(f"/run/netns/{space}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), space)
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(variables)
    sys.path.insert(0, str(PROGRAMS))
    sys.argv = [program]
    runpy.run_path(str(PROGRAMS / f"{program}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
