"""The parts of the tour: each is a command that a user could type, and a short summary of its result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism.errors import PrismError

PROGRAM = Path(__file__).with_name("program.py")
HANGING = Path(__file__).with_name("hanging.py")
_STEPS, _SAVE_EVERY, _KILL_AT, _TRACE_JOBS = 240, 40, 100, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the tour."""

    name: str
    title: str
    words: tuple[str, ...]  # after `prism`
    sum_up: Callable[[Any], list[str]]
    planted: str  # what the tour knows and the command does not
    is_right: Callable[[Any], bool]
    keep: str = ""  # file in the tour's folder for the result
    after: str = ""  # the part whose files it reads
    beside: Callable[[], Any] | None = field(default=None, repr=False)  # an action while it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The result of a part."""

    part: Part
    seconds: float
    lines: list[str]
    right: bool


def list_parts(folder: Path) -> list[Part]:
    """The parts after the observed cluster, in order; later ones read what earlier ones wrote."""
    run = folder / "training"
    return [
        Part(
            name="emulate",
            title="A small GPT on 1,024 ranks, one of them real",
            words=("emulate", "--world-size", "1024", "--cluster", "dgx-h100", "--iterations", "3", "--warmup", "2",
                   "--no-check-symmetry", "--output", str(folder / "emulate"), "--", str(PROGRAM), "--shard",
                   "--steps", "5", "--width", "128", "--layers", "2"),
            sum_up=_sum_up_emulation,
            planted="a program of 1,024 equal ranks",
            is_right=lambda told: told[-1]["world_size"] == 1024 and len(told[-1]["classes"]) == 1,
        ),
        Part(
            name="supervise",
            title=f"The same program trained for real, a rank killed at step {_KILL_AT}",
            words=("supervise", "--config", str(run / "supervise.yaml"), "--run-dir", str(run / "run"), "--",
                   sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(PROGRAM),
                   "--folder", str(run), "--steps", str(_STEPS), "--save-every", str(_SAVE_EVERY)),
            sum_up=_sum_up_run,
            planted=f"one SIGKILL; {_STEPS} steps to do",
            is_right=lambda told: _end_of(told[-1]) == ("done", _STEPS, 1),
            beside=lambda: _killing(run),
        ),
        Part(
            name="explain",
            title="Why the first attempt died, from its log",
            words=("explain", str(run / "run" / "attempts" / "0001")),
            sum_up=_sum_up_verdicts,
            planted="SIGKILL of rank 1",
            is_right=lambda told: [(d["cause"]["name"], d["first_rank"]) for d in told] == [("SIGKILL", 1)],
            keep="verdicts.jsonl",
            after="supervise",
        ),
        Part(
            name="investigate",
            title="Another job hangs: who it was, from its dumps, stacks, logs and flows",
            words=("investigate", str(folder / "hang"), "--flows", str(folder / "hang" / "flows.csv"), "--topology",
                   str(folder / "hang" / "topology.csv"), "--output", str(folder / "investigate")),
            sum_up=_sum_up_investigation,
            planted="rank 2 waits for a file that never comes",
            is_right=lambda told: {"type": "rank", "id": "2"} in told[-1]["verdict"]["culprits"],
            beside=lambda: _hanging(folder / "hang"),
        ),
        Part(
            name="evaluate",
            title="Its checkpoints, scored",
            words=("evaluate", str(folder / "plan.yaml"), "--engine", "local", "--output", str(folder / "evaluate")),
            sum_up=_sum_up_scores,
            planted=f"{_STEPS // _SAVE_EVERY} checkpoints and 4 datasets",
            is_right=lambda told: [len(r) for r in told[-1]["results"].values()] == [4] * (_STEPS // _SAVE_EVERY),
            after="supervise",
        ),
        Part(
            name="characterize",
            title="A datacenter's job trace (synthetic, with the statistics of Kalos)",
            words=("characterize", str(folder / "kalos.csv"), "--output", str(folder / "datacenter")),
            sum_up=_sum_up_datacenter,
            planted=f"{_TRACE_JOBS:,} jobs",
            is_right=lambda told: told[-1]["jobs"] == _TRACE_JOBS,
            beside=lambda: _tracing(folder / "kalos.csv"),
        ),
    ]  # fmt: skip


def prepare(folder: Path) -> None:
    """Write the input files of the parts; files of an earlier tour are removed."""
    run = folder / "training"
    for old in (run, folder / "emulate", folder / "investigate", folder / "evaluate", folder / "datacenter"):
        shutil.rmtree(old, ignore_errors=True)
    run.mkdir(parents=True, exist_ok=True)
    (run / "supervise.yaml").write_text("poll_s: 0.2\nrestarts:\n  backoff_s: 0.2\nlaunch:\n  grace_s: 5.0\n")
    (folder / "plan.yaml").write_text(
        "checkpoints:\n  path: training/exported/*\ndatasets: [text, order, arithmetic, copy]\n"
        "hardware:\n  device: cpu\n  workers: 2\n"
    )


def run_part(part: Part, folder: Path) -> Stop:
    """Run one part as a process of its own; a part that fails says so, and the others go on."""
    start = time.perf_counter()
    try:
        with ExitStack() as stack:
            if part.beside:
                stack.enter_context(part.beside())
            printed = call(part.words)
        if part.keep:
            (folder / part.keep).write_text("\n".join(printed) + "\n")
        documents = [json.loads(line) for line in printed]
        right, lines = part.is_right(documents), part.sum_up(documents)
    except (PrismError, OSError, ValueError, LookupError, TypeError) as error:
        right, lines = False, [str(error)]
    lines.append(f"{'right' if right else 'WRONG'}: planted was {part.planted}")
    return Stop(part=part, seconds=time.perf_counter() - start, lines=lines, right=right)


def call(words: tuple[str, ...]) -> list[str]:
    """The JSON lines that a command prints; its error message if it fails."""
    at = words.index("--") if "--" in words else len(words)
    command = [sys.executable, "-P", "-m", "prism", *words[:at], "--json", *words[at:]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.strip()]
        raise PrismError(f"prism {words[0]} ended with exit code {done.returncode}: {told[-1] if told else 'no words'}")
    return [line for line in done.stdout.splitlines() if line.strip()]


@contextmanager
def _killing(run: Path) -> Iterator[None]:
    """Kill a rank of the job after some steps."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.05):
            files = sorted((run / "run" / "attempts").glob("*/steps.jsonl"))
            told = files[0].read_text().splitlines() if files else []
            steps = [json.loads(line)["step"] for line in told if line.endswith("}") and '"step"' in line]
            if steps and max(steps) >= _KILL_AT:
                os.kill(int((run / "rank-1.pid").read_text()), signal.SIGKILL)
                return

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _tracing(path: Path) -> Iterator[None]:
    """Generate the job trace that the part reads."""
    call(("generate-trace", "kalos", "--num-jobs", str(_TRACE_JOBS), "--output", str(path)))
    yield


@contextmanager
def _hanging(folder: Path) -> Iterator[None]:
    """Let a job hang and keep its files, before the part reads them."""
    done = subprocess.run([sys.executable, str(HANGING), str(folder)], capture_output=True, text=True)
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.strip()]
        raise PrismError(f"the job that is to hang failed: {told[-1] if told else 'no words'}")
    yield


def _sum_up_investigation(documents: list[Any]) -> list[str]:
    verdict = documents[-1]["verdict"]
    who = ", ".join(f"{c['type']} {c['id']}" for c in verdict["culprits"])
    return [f"{verdict['what']}: {who} ({verdict['confidence']:.0%} sure)"]


def _sum_up_emulation(documents: list[Any]) -> list[str]:
    told = documents[-1]
    peak = max(c["peak_allocated_bytes"] for c in told["classes"]) / 1e6
    kinds = f"{len(told['classes'])} kind{'s' if len(told['classes']) > 1 else ''} of rank"
    return [
        f"{told['world_size']:,} ranks: {told['predicted_ms']:.1f} ms a step predicted, {kinds} run for real; "
        f"peak memory {peak:.0f} MB. The time is of this machine's processor, not of a GPU"
    ]


def _end_of(told: dict[str, Any]) -> tuple[str, int, int]:
    return told["outcome"], told["step"], told["num_failures"]


def _sum_up_run(documents: list[Any]) -> list[str]:
    told = documents[-1]
    return [
        f"{told['outcome']} at step {told['step']} in attempt {told['attempt']}, failures: {told['num_failures']}",
        *told["decisions"][-6:],
    ]


def _sum_up_verdicts(documents: list[Any]) -> list[str]:
    return [f"{d['outcome']}: {d['cause']['text'] or d['reason']}; {d['action']}" for d in documents]


def _sum_up_scores(documents: list[Any]) -> list[str]:
    told = documents[-1]
    lines = [f"{told['trials']} trials in {told['makespan_s']:.1f} s, at least {told['lower_bound_s']:.1f} s"]
    for checkpoint, scores in sorted(told["results"].items()):
        metrics = [f"{task} {next(iter(found.values())):.3g}" for task, found in sorted(scores.items()) if found]
        lines.append(f"{checkpoint}: {', '.join(metrics)}")
    return lines


def _sum_up_datacenter(documents: list[Any]) -> list[str]:
    told = documents[-1]
    return [f"{told['jobs']:,} jobs, {told['mean_gpus']:.1f} GPUs on average, median {told['median_duration_s']:.0f} s"]
