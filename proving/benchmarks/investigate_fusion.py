"""What each source adds: the culprit named first from flows alone, + Flight Recorder, + logs, + counters.

    prism diagnose CAPTURES/00/flows.parquet --topology CAPTURES/00/topology.csv --json > FINDINGS/00-clean.json
    python proving/benchmarks/investigate_fusion.py CAPTURES FINDINGS [--captures-named 00,02,...] [--verbose]
    python proving/benchmarks/investigate_fusion.py --seeds 1000:1024 [--verbose]

Captures and their truth are of proving/benchmarks/world, or of random scenarios with one fault each (--seeds: slow
GPUs, hosts and links, hangs and lost hosts of one job with 32 to 128 GPUs); the diagnoses are real. Dumps, logs and
counters are SYNTHETIC: they are made here from the truth by what PyTorch, NCCL and DCGM write for such a fault, since
no capture has them. A slow host calls its collectives late and throttles its clocks; a slow link shows in
no dump and counts receive errors; a rank that hangs does not enter the last collective; ranks of a lost host leave no
dump, its counters end.
Clean evidence is whole. Degraded: a tenth of the flow records, three tenths of the dumps, the NCCL log of a fifth of
the hosts and the counters of half of the hosts are lost, and an innocent host logs an error of its memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from machine import describe_machine
from prism.errors import PrismError
from prism.evidence.fusion import investigate
from prism.evidence.fusion.slow_clues import read_findings
from prism.lab.scenarios import make_scenario
from prism.lab.scenarios.random_family import RandomConfig, random_scenario
from prism.observe.diagnose import diagnose
from prism.records.findings import Culprit, Finding

SOURCES = ("flows", "flight_recorder", "logs", "counters")
_STEPS = 40
_LATE_NS = 60_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One job with a culprit, and what a diagnosis of its flows said."""

    name: str
    state: str  # clean, degraded
    job: dict[str, Any]
    diagnosis: dict[str, Any]
    host_of: dict[str, str]


def main() -> None:
    """Print a line per set of sources, clean and degraded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", type=Path, nargs="?")
    parser.add_argument("findings", type=Path, nargs="?")
    parser.add_argument("--captures-named", default="00,02,04,06,08,12,14")
    parser.add_argument("--seeds", help="random scenarios instead of captures: first and one past the last")
    parser.add_argument("--draws", help="only all sources, degraded, with other losses: first and one past the last")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    print(describe_machine())
    if given.seeds:
        trials = draw_trials(range(*map(int, given.seeds.split(":"))))
    else:
        trials = read_trials(given.captures, given.findings, given.captures_named.split(","))
    if given.draws:
        score_draws(trials, range(*map(int, given.draws.split(":"))))
        return
    right: Counter[tuple[str, int]] = Counter()
    total: Counter[str] = Counter()
    for trial in trials:
        total[trial.state] += 1
        for num in range(1, len(SOURCES) + 1):
            first, told = ask(trial, SOURCES[:num])
            right[trial.state, num] += first
            if given.verbose:
                print(
                    f"  {trial.name} {trial.state} {'+'.join(SOURCES[:num])}: {told if not first else 'first'}",
                    flush=True,
                )
    for state in total:
        for num in range(1, len(SOURCES) + 1):
            print(f"{state}: {' + '.join(SOURCES[:num])}: {right[state, num]} of {total[state]} first")


def score_draws(trials: Iterable[Trial], draws: range) -> None:
    """Print how often all sources together name the culprit when other parts of dumps, logs and counters are lost."""
    right, total = 0, 0
    for trial in trials:
        if trial.state != "degraded":
            continue
        found = [ask(trial, SOURCES, draw) for draw in draws]
        right, total = right + sum(first for first, _ in found), total + len(draws)
        wrong = dict.fromkeys(told for first, told in found if not first)
        print(
            f"  {trial.name}: {sum(first for first, _ in found)} of {len(draws)} first; {'; '.join(wrong)[:400]}",
            flush=True,
        )
    print(f"degraded: {' + '.join(SOURCES)}: {right} of {total} first over {len(draws)} draws of what is lost")


def read_trials(captures: Path, findings: Path, names: list[str]) -> Iterator[Trial]:
    """Jobs with a culprit of captures whose diagnoses lie in a folder."""
    for state, name in itertools.product(("clean", "degraded"), names):
        diagnosis = findings / f"{name}-{state}.json"
        if not diagnosis.exists() or not diagnosis.stat().st_size:
            print(f"{name} {state}: no diagnosis at {diagnosis}; left out")
            continue
        places = pl.read_csv(captures / name / "topology.csv")
        host_of = dict(zip(places["address"], places["host"], strict=True))
        for job in json.loads((captures / name / "truth.json").read_text())["jobs"]:
            if job["culprit"]:
                found = json.loads(diagnosis.read_text())
                yield Trial(name=f"{name} {job['name']}", state=state, job=job, diagnosis=found, host_of=host_of)


def draw_trials(seeds: range) -> Iterator[Trial]:
    """Random scenarios with a fault that has a place, diagnosed whole and with a tenth of the records lost."""
    config = RandomConfig(min_gpus=32, max_gpus=128, max_tenants=1, degraded_share=0.0, fault_share=1.0, steps=24)
    for seed in seeds:
        run = make_scenario(random_scenario(seed, config), seed)
        fault = run.truth["faults"][0]
        if not fault["fired"] or fault["culprit"]["type"] not in ("host", "endpoint", "link"):
            continue
        host_of = dict(zip(run.topology["address"], run.topology["host"], strict=True))
        job = _describe_job(run.truth["jobs"][0], fault, host_of)
        kept = pl.Series(np.random.default_rng(seed).random(run.flows.height) >= 0.1)
        for state, flows in (("clean", run.flows), ("degraded", run.flows.filter(kept))):
            found = diagnose(flows, run.topology).to_json()
            yield Trial(name=f"{seed} {fault['cause']}", state=state, job=job, diagnosis=found, host_of=host_of)


def _describe_job(truth: dict[str, Any], fault: dict[str, Any], host_of: dict[str, str]) -> dict[str, Any]:
    """The truth of a scenario in the shape of that of a capture."""
    who = fault["culprit"]
    ends = who["id"].split(">") if who["type"] == "link" else [who["id"]]
    ends = [e for e in truth["endpoints"] if e in ends or host_of.get(e) in ends]
    steps = [{"start_ns": s["start_ns"], "duration_ns": s["end_ns"] - s["start_ns"]} for s in truth["steps"]]
    culprit = {"kind": fault["kind"], "cause": fault["cause"], "type": who["type"], "id": who["id"], "endpoints": ends}
    kept = {name: truth[name] for name in ("gpus", "endpoints")}
    return {"name": truth["id"], **kept, "steps": steps, "culprit": culprit}


def ask(trial: Trial, sources: tuple[str, ...], draw: int = 0) -> tuple[bool, str]:
    """Whether the verdict of these sources names the culprit, and nobody else of its kind; and what it said."""
    job, host_of, state = trial.job, trial.host_of, trial.state
    rng = random.Random(f"{trial.name} {state}" + (f" {draw}" if draw else ""))
    with tempfile.TemporaryDirectory() as folder:
        write_evidence(Path(folder), job, host_of, sources, rng if state == "degraded" else None)
        try:
            verdict = investigate(Path(folder), read_findings(pick_findings(trial.diagnosis, job), host_of)).fused
        except PrismError as error:
            return False, str(error)
    hosts = {s.id for s in verdict.culprits if s.type == "host"}
    links = {s.id for s in verdict.culprits if s.type == "link"}
    truth = job["culprit"]
    named = {host_of.get(h, h) for h in hosts} or {host_of.get(h, h) for link in links for h in link.split(">")}
    wanted = {truth["id"], *(host_of.get(e, e) for e in truth["endpoints"])} | set(truth["endpoints"])
    told = f"{sorted(hosts)} {sorted(links)} for {truth['id']}: {verdict.what}"
    if "switch" in truth["type"]:
        return any(truth["id"] in link for link in links), told
    return bool(named & wanted) and len(hosts) <= 1, told


def pick_findings(diagnosis: dict[str, Any], job: dict[str, Any]) -> list[Finding]:
    """Findings of the diagnosed job that shares most endpoints with the true one."""
    own = set(job["endpoints"])
    best = max(diagnosis["jobs"], key=lambda j: len(own & set(j["endpoints"])), default=None)
    return [
        Finding(**{**f, "culprit": Culprit(**f["culprit"])})
        for f in diagnosis["findings"]
        if best and f["job"] == best["id"]
    ]


def write_evidence(
    folder: Path, job: dict[str, Any], host_of: dict[str, str], sources: tuple[str, ...], rng: random.Random | None
) -> None:
    """What the job's ranks and hosts would have left; `rng` takes parts of it away."""
    truth = job["culprit"]
    hosts = sorted({host_of.get(e, e) for e in job["endpoints"]})
    per_host = max(1, job["gpus"] // len(hosts))
    ranks = [(n, hosts[min(n // per_host, len(hosts) - 1)]) for n in range(job["gpus"])]
    guilty = {host_of.get(e, e) for e in truth["endpoints"]} if len(truth["endpoints"]) <= per_host else set()
    slow = truth["kind"].startswith(("slow_compute", "load_imbalance"))
    # Of a slow host one GPU is slow; the rest of the host waits with everybody else.
    culprit = next((rank for rank, host in ranks if host in guilty), None)
    lost = guilty if truth.get("cause") == "node_loss" else set()
    if "flight_recorder" in sources:
        for rank, host in ranks:
            if not (rng and rng.random() < 0.3) and host not in lost:
                _write_dump(folder, rank, culprit, job)
    if "logs" in sources:
        kept = [h for h in hosts if not (rng and rng.random() < 0.2)]
        lines = [
            f"{host}:{9000 + rank}:{9100 + rank} [{rank % per_host}] NCCL INFO comm 0x55d0 rank {rank} nranks "
            f"{job['gpus']} cudaDev {rank % per_host} busId {rank % per_host:x}000 commId 0x77 - Init COMPLETE"
            for rank, host in ranks
            if host in kept
        ]
        (folder / "nccl.log").write_text("\n".join(lines) + "\n")
        if rng:
            innocent = rng.choice([h for h in hosts if h not in guilty] or hosts)
            kernel = (
                f"Nov 16 02:00:00 {innocent} kernel: NVRM: Xid (PCI:0000:4e:00): 94, pid=77, Contained memory error\n"
            )
            (folder / "kern.log").write_text(kernel)
    if "counters" in sources:
        kind = "slow" if slow else "hang" if truth["kind"] == "hang" else "link"
        _write_counters(folder / "counters.csv", [h for h in hosts if h not in lost], guilty, kind, rng)


def _write_dump(folder: Path, rank: int, culprit: int | None, job: dict[str, Any]) -> None:
    """A rank's last calls: the culprit of a slow job comes late to each, that of a hang not to the last one."""
    entries: list[dict[str, Any]] = []
    kind = job["culprit"]["kind"]
    late = culprit if kind.startswith(("slow_compute", "load_imbalance")) else None
    for number, step in enumerate(job["steps"][-_STEPS:]):
        at = step["start_ns"] + step["duration_ns"] // 2 + (_LATE_NS if rank == late else (rank * 7919) % 1_000_000)
        entries.append(
            {
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number,
                "op_id": number,
                "p2p_seq_id": 0,
                "profiling_name": "nccl:all_reduce",
                "input_sizes": [[1 << 20]],
                "input_dtypes": ["BFloat16"],
                "time_created_ns": at,
                "state": "completed",
                "retired": True,
            }
        )
    if kind == "hang" and entries:
        if rank == culprit:
            entries.pop()
        else:
            entries[-1] |= {"state": "started", "retired": False}
    config = {"0": {"desc": "default_pg", "ranks": str(list(range(job["gpus"])))}}
    document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
    (folder / f"dump_{rank}.json").write_text(json.dumps(document))


def _write_counters(path: Path, hosts: list[str], guilty: set[str], kind: str, rng: random.Random | None) -> None:
    """A quarter of an hour in steps of half a minute."""
    rows = ["time,host,gpu,metric,value"]
    for host in hosts:
        if rng and rng.random() < 0.5:
            continue
        for minute in range(30):
            bad = host in guilty and minute >= 10
            throttled = 0x40 if bad and kind == "slow" else 0  # hardware thermal slowdown
            rows.append(f"{1_790_000_000 + 30 * minute},{host},0,DCGM_FI_DEV_CLOCK_THROTTLE_REASONS,{throttled}")
            rows.append(f"{1_790_000_000 + 30 * minute},{host},0,DCGM_FI_DEV_SM_CLOCK,{1100 if throttled else 1980}")
            errors = 400 * (minute - 9) if bad and kind == "link" else 0
            rows.append(f"{1_790_000_000 + 30 * minute},{host},,node_network_receive_errs_total,{errors}")
    path.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
