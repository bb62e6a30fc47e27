"""Random faults on an unchanged Hugging Face training, under Prism and beside it under torchrun's own restarts.

    python -m drills.hf_soak [--faults 200] [--chunk 10] [--seed 0] [--peer] [--ledger soak.jsonl]

The faults are spread over runs of `--chunk` faults; the seed of a run is `--seed` plus its number. With a ledger, runs
that are in it are not made again, so that a soak can be stopped at any time and taken up later. Prints the seeds, every
fault, what it cost, and whether the weights at the end equal those of an undisturbed run.
"""

# ruff: noqa: T201 (a program of its own)
from __future__ import annotations

import argparse
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from drills.plain_stage import TORCHRUN, TRAINERS, PlainStage
from drills.soak_ledger import FaultNote, Ledger, Tally, fingerprint, summarize
from drills.soak_truth import Sampler
from drills.stage import DrillError
from prism.recover.catalog import Catalog
from prism.recover.supervise.goodput import LOST, RESTART, read_goodput, total_hours
from prism.recover.supervise.launchers.node import find_ranks, find_tree

_STEPS_PER_FAULT = 12
_SAVE_STEPS = 5
_STEP_S = "0.1"
_SCRIPT = str(TRAINERS / "hf_trainer.py")
_WEIGHTS = re.compile(r"weights (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done, so many steps after the run got over the last one."""

    name: str
    ahead: int


FAULTS = ("kill a rank", "crash a rank", "terminate the launcher", "kill the tree", "kill the supervisor", "corrupt")


def draw(count: int, seed: int) -> list[Fault]:
    """The faults of a seed."""
    lot = random.Random(seed)
    return [Fault(name=lot.choice(FAULTS), ahead=lot.randint(3, _STEPS_PER_FAULT - 2)) for _ in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A run that nothing is done to."""

    weights: str
    wall_s: float


def undisturbed(folder: Path, steps: int) -> Reference:
    """The weights and the time of a run that nothing is done to, at the same pace."""
    command = [*TORCHRUN, "--nproc-per-node", "1", "--master-port", "29671", _SCRIPT]
    started = time.time()
    done = subprocess.run(
        [*command, str(folder / "reference"), str(steps)],
        capture_output=True,
        text=True,
        env={**os.environ, "STEP_S": _STEP_S, "OMP_NUM_THREADS": "1"},
    )
    found = _WEIGHTS.search(done.stdout)
    if found is None:
        raise DrillError(f"the undisturbed run failed: {done.stderr[-500:]}")
    return Reference(weights=found[1], wall_s=time.time() - started)


def soak_prism(folder: Path, seed: int, faults: list[Fault], steps: int) -> Tally:
    """The run under `prism supervise --checkpoint auto`; every setting but the interval of saves is the default."""
    folder.mkdir(parents=True)
    stage = PlainStage(
        folder=folder / "prism",
        command=(*TORCHRUN, "--nproc-per-node", "1", _SCRIPT, "out", str(steps)),
        options=("--checkpoint", "auto"),
        settings={"checkpoint": {"interval_steps": _SAVE_STEPS}},
        variables={"STEP_S": _STEP_S},
        timeout_s=600.0,
    )
    tally, started, sampler = Tally(program="prism", seed=seed, code=fingerprint()), time.time(), Sampler(stage)
    stage.start()
    sampler.start()
    try:
        for fault in faults:
            _watch_until(stage, tally, min(tally.reached + fault.ahead, steps - 2))
            kept = _harm(stage, fault)
            tally.faults += 1
            _note_recovery(stage, tally, fault, kept)
        state = stage.wait_end()
        tally.wall_s = time.time() - started
        tally.finished = state.outcome == "done"
        found = _WEIGHTS.search(stage.log(state.attempt))
        tally.weights = found[1] if found else f"none: {state.outcome_text}"
        _print_goodput(stage, tally, sampler.lost_s())
    except DrillError as error:
        tally.why = str(error)
    finally:
        sampler.ended.set()
        tally.false_stop = not tally.finished
        tally.wall_s = tally.wall_s or time.time() - started
        stage.close()
    return tally


def _watch_until(stage: PlainStage, tally: Tally, step: int) -> None:
    def reached() -> bool:
        steps = [int(r["step"]) for r in stage.reports(stage.state().attempt) if r["kind"] == "step"]
        tally.reached = max([tally.reached, *steps])
        return bool(steps) and steps[-1] >= step

    stage.wait_for(f"step {step}", reached)


def _harm(stage: PlainStage, fault: Fault) -> int:
    """Do it; the newest checkpoint that is left."""
    attempt = stage.state().attempt
    saved = [0, *(entry.step for entry in Catalog(stage.run_dir / "checkpoints").entries())]
    ranks = stage.ranks(attempt)
    match fault.name:
        case "kill a rank":
            os.kill(ranks[0], signal.SIGKILL)
        case "crash a rank":
            os.kill(ranks[0], signal.SIGSEGV)
        case "terminate the launcher":
            os.kill(stage.launcher(attempt), signal.SIGTERM)
        case "kill the tree":
            for pid in stage.processes(attempt):
                os.kill(pid, signal.SIGKILL)
        case "kill the supervisor":
            assert stage.supervisor is not None
            stage.supervisor.kill()
            stage.supervisor.wait()
            os.kill(ranks[0], signal.SIGKILL)
            stage.start()
        case _:
            for entry in Catalog(stage.run_dir / "checkpoints").entries()[-1:]:
                for path in entry.path.glob("*.distcp"):
                    with path.open("r+b") as handle:
                        handle.write(b"\0" * 16)
            os.kill(ranks[0], signal.SIGKILL)
            return saved[-2] if len(saved) > 1 else 0
    return saved[-1]


def _note_recovery(stage: PlainStage, tally: Tally, fault: Fault, kept: int) -> None:
    """Wait for the first step of the next attempt, and note by our own clock what the fault cost."""
    attempt, hurt_s = stage.state().attempt, time.time()
    stage.wait_for(f"recovery from {fault.name}", lambda: _stepped(stage, attempt + 1))
    again = stage.reports(stage.state().attempt)
    restored = next((int(r["step"]) for r in again if r["kind"] == "restored"), 0)
    took_s = time.time() - hurt_s
    note = FaultNote(name=fault.name, step=tally.reached, kept=kept, restored=restored, seconds=round(took_s, 1))
    tally.notes.append(note)
    print(f"{tally.faults:4} {fault.name:24} at {tally.reached:5}: back to {restored}, {took_s:.1f} s", flush=True)


def _stepped(stage: PlainStage, attempt: int) -> bool:
    now = stage.state()
    if now.over:
        raise DrillError(f"a wrong stop: {now.outcome_text}")
    return now.attempt >= attempt and any(r["kind"] == "step" for r in stage.reports(now.attempt))


def _print_goodput(stage: PlainStage, tally: Tally, truth_s: float) -> None:
    rows = total_hours(read_goodput([stage.run_dir], gpus=1), "kind").to_dicts()
    seconds = {row["kind"]: row["gpu_hours"] * 3600.0 for row in rows}
    told_s = seconds.get(LOST, 0.0) + seconds.get(RESTART, 0.0)
    print(f"goodput: {', '.join(f'{kind} {value:.1f} s' for kind, value in seconds.items())}")
    apart = abs(told_s - truth_s) / tally.wall_s
    tally.goodput_apart = round(apart, 5)
    print(f"lost work and restarts: told {told_s:.1f} s, seen {truth_s:.1f} s; {apart:.2%} of the run apart")


def soak_torchrun(folder: Path, seed: int, faults: list[Fault], steps: int) -> Tally:
    """The peer: the same script with the Trainer's own saves and resume, under `torchrun --max-restarts`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "1", "--max-restarts", "1000", _SCRIPT]
    environment = {**os.environ, "STEP_S": _STEP_S, "SAVE_STEPS": str(_SAVE_STEPS), "OMP_NUM_THREADS": "1"}
    # torch 2.13 shares one store between attempts, and what the first left there can hold up the second.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    log, tally, started = folder / "torchrun.log", Tally(program="torchrun", seed=seed), time.time()
    with log.open("wb") as output:
        job = subprocess.Popen(
            [*command, str(folder / "peer"), str(steps)], stdout=output, stderr=output, env=environment
        )
    try:
        for fault in faults:
            begun = log.stat().st_size
            tally.reached = min(tally.reached + fault.ahead, steps - 2)
            if not _peer_wait(job, log, begun, tally.reached):
                hung = job.poll() is None
                tally.why = f"{'no step in 300 s' if hung else 'it ended'} after {tally.faults} faults"
                break
            _peer_harm(job, fault, folder / "peer")
            tally.faults += 1
            time.sleep(2.0)
        else:
            job.wait(600.0)
    except subprocess.TimeoutExpired:
        tally.why = "it hung"
    finally:
        for pid in find_tree(job.pid):
            os.kill(pid, signal.SIGKILL)
        job.wait()
    tally.wall_s = time.time() - started
    found = _WEIGHTS.search(log.read_text(errors="replace"))
    tally.finished, tally.weights = found is not None, found[1] if found else "none"
    tally.false_stop = not tally.finished
    return tally


def _peer_wait(job: subprocess.Popen[bytes], log: Path, begun: int, step: int) -> bool:
    deadline = time.monotonic() + 300.0
    while job.poll() is None and time.monotonic() < deadline:
        text = log.read_bytes()[begun:].decode(errors="replace")
        if any(int(found) >= step for found in re.findall(r"\| (\d+)/\d+ \[", text)):
            return True
        time.sleep(0.2)
    return False


def _peer_harm(job: subprocess.Popen[bytes], fault: Fault, output: Path) -> None:
    tree = find_tree(job.pid)
    ranks = find_ranks(tree)
    if fault.name in ("kill the tree", "kill the supervisor"):
        for pid in tree if fault.name == "kill the tree" else [job.pid]:
            os.kill(pid, signal.SIGKILL)
    elif fault.name == "terminate the launcher":
        os.kill(job.pid, signal.SIGTERM)
    elif ranks:
        if fault.name == "corrupt":
            for path in sorted(output.glob("checkpoint-*/*.safetensors"), key=lambda p: p.stat().st_mtime)[-1:]:
                with path.open("r+b") as handle:
                    handle.write(b"\0" * 16)
        os.kill(ranks[0], signal.SIGSEGV if fault.name == "crash a rank" else signal.SIGKILL)


def soak(options: argparse.Namespace, ledger: Ledger, folder: Path) -> None:
    """Make the runs that the ledger does not have."""
    steps = options.chunk * _STEPS_PER_FAULT + 20
    programs = {"prism": soak_prism, **({"torchrun": soak_torchrun} if options.peer else {})}
    reference = None
    for seed in range(options.seed, options.seed + math.ceil(options.faults / options.chunk)):
        for name, program in programs.items():
            if ledger.has(name, seed):
                continue
            reference = reference or undisturbed(folder, steps)
            print(f"seed {seed}: {options.chunk} faults on {steps} steps under {name}", flush=True)
            tally = program(folder / str(seed), seed, draw(options.chunk, seed), steps)
            tally.equal = tally.weights == reference.weights
            tally.lost_s = tally.wall_s - reference.wall_s
            ledger.add(tally)
            print(f"seed {seed}: {tally}", flush=True)
        shutil.rmtree(folder / str(seed), ignore_errors=True)


def main() -> int:
    """Run the soak and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--chunk", type=int, default=10, help="faults on one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", action="store_true", help="the same faults under torchrun --max-restarts as well")
    parser.add_argument("--ledger", type=Path, help="file of results; runs that are in it are not made again")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))  # jobs end with it
    ledger = Ledger(options.ledger)
    with tempfile.TemporaryDirectory(prefix="prism-soak-") as name:
        soak(options, ledger, Path(name))
    print("\n".join(summarize(ledger.tallies, options.chunk)))
    own = [one for one in ledger.tallies if one.program == "prism"]
    return 0 if own and all(one.finished and one.equal for one in own) else 1


if __name__ == "__main__":
    sys.exit(main())
