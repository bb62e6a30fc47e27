"""Random faults on an unchanged Hugging Face training, under Prism, and for comparison under torchrun's restarts.

    python -m proving.drills.hf_soak [--faults 200] [--chunk 10] [--seed 0] [--ranks 1] [--peer] [--ledger soak.jsonl]

The faults are spread over runs of `--chunk` faults; the seed of a run is `--seed` plus its number. With a ledger, runs
that are in it are not made again, so that a soak can be stopped at any time and taken up later. Several soaks with
seeds of their own may run at once. The logs of a run that went wrong are kept beside the ledger. Prints the seeds,
every fault, what it cost, and whether the weights at the end equal those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from prism.recover.supervise.goodput import HANG, LOST, RESTART, read_goodput, total_hours
from proving.drills import soak_peer
from proving.drills.plain_stage import TORCHRUN, TRAINERS, PlainStage
from proving.drills.soak_faults import FAULTS, STEPS_PER_FAULT, Fault, draw, harm, small_disk
from proving.drills.soak_ledger import FaultNote, Ledger, Tally, fingerprint, summarize
from proving.drills.soak_truth import Sampler
from proving.drills.stage import DrillError

_SAVE_STEPS = 5
_SILENCE_S = 60.0  # that is a hang
_STEP_S = "0.1"
_BATCHES_AHEAD = 10  # more than loaders fetch ahead of the trainer
_SCRIPT = str(TRAINERS / "hf_trainer.py")
_WEIGHTS = re.compile(r"weights (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained."""

    steps: int
    ranks: int

    def command(self, *options: str) -> tuple[str, ...]:
        """torchrun and the script, without their last arguments: an output folder and the number of steps."""
        return (*TORCHRUN, *options, "--nproc-per-node", str(self.ranks), _SCRIPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An undisturbed run."""

    weights: str
    wall_s: float


def undisturbed(folder: Path, training: Training) -> Reference:
    """The weights and the duration of an undisturbed run at the same speed."""
    command = training.command("--standalone")  # a free port, since other soaks may run beside this one
    started = time.time()
    done = subprocess.run(
        [*command, str(folder / "reference"), str(training.steps)],
        capture_output=True,
        text=True,
        env={**os.environ, "STEP_S": _STEP_S, "OMP_NUM_THREADS": "1"},
    )
    found = _WEIGHTS.search(done.stdout)
    if found is None:
        raise DrillError(f"the undisturbed run failed: {done.stderr[-500:]}")
    return Reference(weights=found[1], wall_s=time.time() - started)


def soak_prism(folder: Path, seed: int, faults: list[Fault], training: Training) -> Tally:
    """The run under `prism supervise --checkpoint auto`; all settings but two are the defaults, to be done in a day."""
    stage = PlainStage(
        folder=folder / "prism",
        command=(*training.command(), "out", str(training.steps)),
        options=("--checkpoint", "auto"),
        settings={"checkpoint": {"interval_steps": _SAVE_STEPS}, "pace": {"min_silence_s": _SILENCE_S}},
        variables={"STEP_S": _STEP_S},
        timeout_s=600.0,
    )
    tally, started, sampler = Tally(program="prism", seed=seed, code=fingerprint()), time.time(), Sampler(stage)
    try:
        with small_disk(stage.run_dir / "checkpoints", faults):
            stage.start()
            sampler.start()
            over_s = sum(_disturb(stage, tally, fault, training.steps) for fault in faults)
            state = stage.wait_end()
            tally.wall_s = time.time() - started - over_s
            tally.finished = state.outcome == "done"
            found = _WEIGHTS.search(stage.log(state.attempt))
            tally.weights = found[1] if found else f"none: {state.outcome_text}"
            _print_goodput(stage, tally, sampler.lost_s() - over_s)
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


def _disturb(stage: PlainStage, tally: Tally, fault: Fault, steps: int) -> float:
    """Inject one fault, wait until the run has recovered, and note its cost; returns for how long it was stopped."""
    _watch_until(stage, tally, min(tally.reached + fault.ahead, steps - 2))
    attempt, hurt_s = stage.state().attempt, time.time()
    tally.faults += 1
    done = harm(stage, fault, tally)
    restored = done.kept
    if fault.name != "fill the disk":  # which is no reason to begin again
        stage.wait_for(
            f"recovery from {fault.name}",
            lambda: _stepped(stage, attempt + 1) or _unharmed(stage, fault, attempt, tally.reached),
        )
        if stage.state().attempt > attempt:
            again = stage.reports(stage.state().attempt)
            restored = next((int(r["step"]) for r in again if r["kind"] == "restored"), 0)
    took_s = time.time() - hurt_s - done.over_s
    note = FaultNote(name=fault.name, step=tally.reached, kept=done.kept, restored=restored, seconds=round(took_s, 1))
    tally.notes.append(note)
    print(f"{tally.faults:4} {fault.name:24} at {tally.reached:5}: back to {restored}, {took_s:.1f} s", flush=True)
    return done.over_s


def _stepped(stage: PlainStage, attempt: int) -> bool:
    now = stage.state()
    if now.over and now.outcome != "done":
        raise DrillError(f"a wrong stop: {now.outcome_text}")
    return now.attempt >= attempt and any(r["kind"] == "step" for r in stage.reports(now.attempt))


def _unharmed(stage: PlainStage, fault: Fault, attempt: int, hurt_step: int) -> bool:
    """Whether the killed loader had no batch left in this epoch, so that training does not need it."""
    now = stage.state()
    if fault.name != "kill a loader" or now.attempt != attempt:
        return False
    steps = [int(r["step"]) for r in stage.reports(attempt) if r["kind"] == "step"]
    return now.over or (bool(steps) and steps[-1] > hurt_step + _BATCHES_AHEAD)


def _print_goodput(stage: PlainStage, tally: Tally, truth_s: float) -> None:
    rows = total_hours(read_goodput([stage.run_dir], gpus=1), "kind").to_dicts()
    seconds = {row["kind"]: row["gpu_hours"] * 3600.0 for row in rows}
    told_s = sum(seconds.get(kind, 0.0) for kind in (LOST, RESTART, HANG))
    print(f"goodput: {', '.join(f'{kind} {value:.1f} s' for kind, value in seconds.items())}")
    apart = abs(told_s - truth_s) / tally.wall_s
    tally.goodput_apart = round(apart, 5)
    print(f"lost work and restarts: told {told_s:.1f} s, seen {truth_s:.1f} s; {apart:.2%} of the run apart")


def soak_torchrun(folder: Path, seed: int, faults: list[Fault], training: Training) -> Tally:
    """The peer: the same script with the Trainer's own saves and resume, under `torchrun --max-restarts`."""
    variables = {"STEP_S": _STEP_S, "SAVE_STEPS": str(_SAVE_STEPS), "OMP_NUM_THREADS": "1"}
    tally, started = Tally(program="torchrun", seed=seed), time.time()
    command = training.command("--standalone", "--max-restarts", "1000")
    command = (*command, str(folder / "peer"), str(training.steps))
    log = soak_peer.soak_torchrun(folder, tally, faults, list(command), variables)
    tally.wall_s = time.time() - started
    found = _WEIGHTS.search(log)
    tally.finished, tally.weights = found is not None, found[1] if found else "none"
    tally.false_stop = not tally.finished
    return tally


def soak(options: argparse.Namespace, ledger: Ledger, folder: Path) -> None:
    """Do the runs that the ledger does not contain."""
    training = Training(steps=options.chunk * STEPS_PER_FAULT + 20, ranks=options.ranks)
    programs = {"prism": soak_prism, **({"torchrun": soak_torchrun} if options.peer else {})}
    reference = None
    for seed in range(options.seed, options.seed + math.ceil(options.faults / options.chunk)):
        for name, program in programs.items():
            if ledger.has(name, seed):
                continue
            reference = reference or undisturbed(folder, training)
            print(f"seed {seed}: {options.chunk} faults on {training.steps} steps under {name}", flush=True)
            tally = program(folder / str(seed), seed, draw(options.chunk, seed, options.without), training)
            tally.equal = tally.weights == reference.weights
            tally.lost_s = tally.wall_s - reference.wall_s
            ledger.add(tally)
            print(f"seed {seed}: {tally}", flush=True)
            if name == "prism" and not (tally.finished and tally.equal):
                _keep(folder / str(seed) / name, ledger, seed)
        shutil.rmtree(folder / str(seed), ignore_errors=True)


def _keep(run: Path, ledger: Ledger, seed: int) -> None:
    """Keep the logs and the state of a failed run, without its checkpoints, which are large."""
    if ledger.path is not None:
        kept = ledger.path.with_name(f"{ledger.path.stem}-failed-{seed}")
        shutil.copytree(run, kept, ignore=shutil.ignore_patterns("checkpoints"), dirs_exist_ok=True)


def main() -> int:
    """Run the soak and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--chunk", type=int, default=10, help="faults on one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--peer", action="store_true", help="the same faults under torchrun --max-restarts as well")
    parser.add_argument("--ledger", type=Path, help="file of results; runs that are in it are not made again")
    parser.add_argument("--without", nargs="*", default=[], choices=FAULTS, help="faults that cannot be done here")
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
