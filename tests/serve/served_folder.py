"""A folder as the other commands leave it: real output where they are quick, else files in the shapes they declare."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from prism.cli.main import app
from prism.records import EvidenceLine, Verdict
from prism.recover.progress import STEPS_FILE, attempt_dir

EPOCH_S = 1_780_000_000
SCRIPT = '<script>document.title="pwned"</script>'
DATASETS = ("mmlu", "gsm8k", "hellaswag", "arc_challenge", "humaneval", "piqa")


def make_folder(root: Path, scenario: str = "slow-gpu-64") -> Path:
    """Everything that has a page, below one folder."""
    make_diagnosis(root / "report", scenario)
    make_run(root / "runs" / "pretrain")
    make_verdicts(root / "failures")
    make_evaluation(root / "evaluation")
    make_characterization(root / "datacenter")
    make_watch(root / "watch")
    make_emulation(root / "emulation", root / "report" / "cluster")
    # Tests may take long: what is written to as long as it runs must not be taken for stale meanwhile.
    tomorrow = time.time() + 86_400
    for path in (root / "watch" / "state.json", *(root / "evaluation").iterdir()):
        os.utime(path, (tomorrow, tomorrow))
    return root


def run_command(*words: str) -> None:
    """Run a command of Prism in this process."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, f"{words}: {done.output} {done.exception!r}"


def make_diagnosis(folder: Path, scenario: str) -> None:
    """A cluster's flows, and what `prism diagnose` makes of them."""
    cluster = folder / "cluster"
    run_command("scenario", scenario, "--output", str(cluster))
    topology = str(cluster / "topology.csv")
    run_command("diagnose", str(cluster / "flows.parquet"), "--topology", topology, "--output", str(folder))
    if not (folder / "topology.csv").exists():
        (folder / "topology.csv").write_text((cluster / "topology.csv").read_text())


def make_run(folder: Path) -> None:
    """A supervised run: a failed attempt, a rollback, a cordoned host."""
    for attempt, first, last in ((1, 1, 60), (2, 41, 110), (3, 81, 160)):
        steps = attempt_dir(folder, attempt)
        steps.mkdir(parents=True)
        with (steps / STEPS_FILE).open("w") as handle:
            for line in list_reports(attempt, first, last):
                handle.write(json.dumps(line) + "\n")
    log = "".join(f"step {step} loss {loss_at(step):.4f}\n" for step in range(1, 61))
    (attempt_dir(folder, 1) / "node-2.log").write_text(log + "NVRM: Xid (PCI:0000:4e:00): 74, NVLink\n" + SCRIPT + "\n")
    verdict = Verdict(
        log=str(attempt_dir(Path(folder.parent.name) / folder.name, 1)),
        reason="NVLinkError",
        category="infrastructure",
        action="isolate_and_restart",
        confidence=0.97,
        evidence=(EvidenceLine(line=61, text="NVRM: Xid (PCI:0000:4e:00): 74, NVLink", file="node-2.log"),),
        hosts=("node-2",),
        first_rank=17,
        lines_read=62,
        lines_kept=2,
        mitigation="Take the host out.",
    )
    launch = {"action": "Launch", "hosts": ["node-1", "node-2"], "num_hosts": 2, "excluded": [], "skip": []}
    again = {**launch, "hosts": ["node-1", "node-3"], "excluded": ["node-2"]}
    cordon = {"action": "Cordon", "host": "node-2", "reason": "NVLinkError", "hours": 2.0}
    told = [
        decide(0, {"kind": "Tick"}, [{**launch, "attempt": 1, "resume_step": None}]),
        decide(70, {"kind": "Exited", "code": 1, "host": "node-2", "lost": False}, [{"action": "Explain", "attempt": 1}]),
        decide(72, {"kind": "Explained", "verdict": verdict.to_json()}, [cordon, {**again, "attempt": 2, "resume_step": None}]),
        decide(150, {"kind": "StepDone", "step": 110, "loss": 9.1}, [{"action": "Kill", "attempt": 2, "grace_s": 0.0}]),
        decide(151, {"kind": "Exited", "code": -9, "host": "node-1", "lost": False},
               [{"action": "DiscardAfter", "folder": "/checkpoints", "step": 80}, {**again, "attempt": 3, "resume_step": 80}]),
    ]  # fmt: skip
    (folder / "decisions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    record = {"strikes_s": [], "cordoned_until_s": 7300.0, "num_cordons": 1, "reasons": ["NVLinkError"]}
    state = {
        "phase": "running", "outcome": "", "outcome_text": "", "attempt": 3, "hosts": ["node-1", "node-3"],
        "best_step": 160, "saved_steps": [80, 100, 120, 140, 160], "num_rollbacks": 1,
        "skip": [{"first": 108, "last": 110}], "book": {"records": {"node-2": record}},
        "failures": [{"at_s": 70.0, "reason": "NVLinkError", "category": "infrastructure", "step": 60, "host": "node-2"}],
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps({"schema": "prism.supervise/1", "state": state}))


def list_reports(attempt: int, first: int, last: int) -> list[dict[str, Any]]:
    """What a trainer reports over some steps."""
    begin = EPOCH_S + {1: 0, 2: 75, 3: 155}[attempt]
    lines: list[dict[str, Any]] = []
    if attempt > 1:
        lines.append({"kind": "restored", "time": begin, "step": first - 1, "source": "storage"})
    for step in range(first, last + 1):
        loss = loss_at(step) + (5.0 if attempt == 2 and step > 107 else 0.0)
        lines.append({"kind": "step", "time": begin + (step - first), "step": step, "loss": loss, "batch": step})
        if step % 20 == 0:
            lines.append({"kind": "saved", "time": begin + (step - first) + 0.3, "step": step, "healthy": True})
    return lines


def loss_at(step: int) -> float:
    """A loss that falls and wobbles."""
    return 2.0 + 8.0 * math.exp(-step / 40) + 0.2 * math.sin(step)


def decide(at_s: float, event: dict[str, Any], actions: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of decisions.jsonl."""
    return {"time": EPOCH_S + at_s, "event": {"now_s": at_s, **event}, "actions": actions}


def make_verdicts(folder: Path) -> None:
    """Logs, and what `prism explain` says about them; one holds a script."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    healthy = "".join(f"[rank{i % 8}] step {i} loss {loss_at(i):.4f}\n" for i in range(120))
    (logs / "oom.log").write_text(
        healthy + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n" + SCRIPT + "\n"
    )
    (logs / "import.log").write_text(
        f"{SCRIPT}\nTraceback (most recent call last):\n  File \"a.py\", line 1\nModuleNotFoundError: No module named 'flash_attm'\n"
    )
    verdicts = []
    for log in ("oom", "import"):
        done = CliRunner().invoke(app, ["explain", str(logs / f"{log}.log"), "--json"])
        assert done.exit_code == 0, done.output
        verdicts.append(json.loads(done.stdout.splitlines()[0]) | {"log": f"logs/{log}.log"})
    (folder / "verdicts.jsonl").write_text("".join(json.dumps(v) + "\n" for v in verdicts))


def make_evaluation(folder: Path, *, checkpoints: int = 7) -> None:
    """An evaluation under way, in the shape that `prism evaluate --output` writes."""
    folder.mkdir(parents=True)
    free_ns = [EPOCH_S * 10**9] * 16
    lines, scores = [], ["checkpoint,step,dataset,metric,value"]
    for number in range(checkpoints):
        step, name = 2_000 * (number + 1), f"step-{2_000 * (number + 1):09d}"
        for column, dataset in enumerate(DATASETS):
            worker = free_ns.index(min(free_ns))
            for phase, seconds in (
                ("load", 2 + column),
                ("infer", 40 + 11 * column + 3 * number),
                ("score", 3 + column),
            ):
                end = free_ns[worker] + seconds * 10**9
                lines.append({
                    "trial": f"{name}/{dataset}", "checkpoint": name, "step": step, "dataset": dataset,
                    "node": f"node-{worker // 8}", "worker": f"gpu{worker % 8}", "phase": phase,
                    "start_ns": free_ns[worker], "end_ns": end, "state": "done", "attempt": 1,
                })  # fmt: skip
                free_ns[worker] = end
            scores.append(
                f"{name},{step},{dataset},accuracy,{0.2 + 0.1 * column + 0.4 * (1 - math.exp(-step / 6e3)):.4f}"
            )
    (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "leaderboard.csv").write_text("\n".join(scores) + "\n")
    write_progress(folder, done=42)


def write_progress(folder: Path, *, done: int) -> None:
    """Replace an evaluation's progress."""
    progress = {
        "state": "running", "trials": {"done": done, "running": 3, "waiting": 9, "failed": 1},
        "gpus_busy": 13, "gpus": 16, "time_left_s": 312.5, "updated_ns": EPOCH_S * 10**9,
    }  # fmt: skip
    aside = folder / "progress.json.tmp"
    aside.write_text(json.dumps(progress))
    aside.replace(folder / "progress.json")


def make_characterization(folder: Path) -> None:
    """A datacenter's report on a small synthetic trace."""
    trace = folder.parent / "kalos.csv"
    run_command("generate-trace", "kalos", "--num-jobs", "3000", "--output", str(trace))
    run_command("characterize", str(trace), "--cluster", "kalos", "--output", str(folder))
    trace.unlink()


def make_watch(folder: Path) -> None:
    """The state of a watch, and the finding it printed."""
    folder.mkdir(parents=True)
    second = EPOCH_S * 10**9
    job = {
        "endpoints": ["10.0.0.1", "10.0.0.2"],
        "first_seen_ns": second,
        "last_seen_ns": second + 10**10,
        "step_s": 1.5,
    }
    known = {
        "id": "finding-1", "kind": "slow_link", "job": "job-1", "culprit_type": "link", "culprit": "10.0.0.1>10.0.0.2",
        "start_ns": second, "end_ns": second + 10**10, "cost": 30.0, "told_cost": 30.0, "sightings": 3, "look": 4,
    }  # fmt: skip
    state = {"schema": "prism.watch-state/1", "jobs": {"job-1": job}, "findings": [known]}
    (folder / "state.json").write_text(json.dumps(state))
    line = {
        "kind": "slow_link", "job": "job-1", "culprit": {"type": "link", "id": "10.0.0.1>10.0.0.2"}, "start_ns": second,
        "end_ns": second + 10**10, "lost_gpu_seconds": 30.0, "score": 0.9, "evidence": f"half as fast {SCRIPT}",
        "id": "finding-1", "update": False, "reported_ns": second,
    }  # fmt: skip
    (folder / "findings.jsonl").write_text(json.dumps(line) + "\n")


def make_emulation(folder: Path, cluster: Path) -> None:
    """An emulation's files; its timeline is a few ranks of the scenario's, from time 0."""
    import polars as pl

    folder.mkdir(parents=True)
    spans = pl.read_parquet(cluster / "spans.parquet").filter(pl.col("rank") < 8)
    first = spans.filter(pl.col("job") == spans["job"][0])
    start = first["start_ns"].min()
    first.with_columns(pl.col("start_ns", "end_ns") - start).write_parquet(folder / "timeline.parquet")
    document = {
        "schema": "prism.emulation/1", "world_size": 64, "iteration_ms": {"median": 800.0, "mean": 801.0, "p95": 810.0},
        "predicted_ms": 800.0, "split": {"compute": 0.8, "exposed_communication": 0.15, "bubble": 0.05},
        "classes": [{"ranks": [0, 1], "peak_allocated_bytes": 10**9, "peak_reserved_bytes": 2 * 10**9, "fits": True}],
        "wall_s": 3.0, "provenance": {"compute": "measured", "communication": "modelled", "error_band_pct": 10},
    }  # fmt: skip
    (folder / "emulation.json").write_text(json.dumps(document))
