"""Faults in real NCCL ranks on one GPU: kills, ranks that spin, sleep, or are stopped, with steps of 0.05 s.

    python -m proving.drills.nccl_drill [--ranks 2] [kill spin sleep stop ...]

NCCL takes ranks with host names of their own for different hosts, over sockets on loopback, so several can share a GPU.
Times mean nothing then; everything else is real: the watchdog, Flight Recorder dumps, kernels that spin. Each run is
under `prism supervise` with its defaults but for the least silence of a hang, 60 s instead of five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_TRAINER = Path(__file__).with_name("trainers") / "nccl_loop.py"
_LIMIT_S = 420.0
_TOLD_WITHIN_S = 30.0
FAULTS = ("kill", "spin", "sleep", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run showed."""

    fault: str
    done: bool
    attempts: int
    told_after_s: float | None  # from the fault to the line that tells of the standstill
    rank_named: bool
    same_result: bool  # as the run without a fault, to the last bit

    @property
    def passed(self) -> bool:
        """Whether the run ended as a person would want."""
        told = self.told_after_s is not None and self.told_after_s <= _TOLD_WITHIN_S
        return self.done and self.same_result and (self.fault in ("none", "kill") or (told and self.rank_named))


def run(folder: Path, fault: str, ranks: int, expected: str) -> Result:
    """Supervise one training in which rank 1 meets a fault at step 60."""
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text("pace: {min_silence_s: 60}\npoll_s: 0.5\n")
    program = ["torchrun", "--nproc-per-node", str(ranks), str(_TRAINER), fault]
    words = [sys.executable, "-m", "prism", "supervise", "--config", "run.yaml", "--run-dir", "run", "--", *program]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    with (folder / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, env=os.environ | {"PATH": path})
        try:
            code = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            code = -1
    told = [json.loads(line) for line in (folder / "run" / "decisions.jsonl").read_text().splitlines()]
    fired = folder / "fired"
    since_s = float(fired.read_text()) if fired.exists() else time.time()
    texts = [(one["time"], action.get("text", "")) for one in told for action in one["actions"]]
    lines = [(at_s, text) for at_s, text in texts if "stands still" in text]
    result = folder / "result"
    return Result(
        fault=fault,
        done=code == 0,
        attempts=sum(a["action"] == "Launch" for one in told for a in one["actions"]),
        told_after_s=round(lines[0][0] - since_s, 1) if lines else None,
        rank_named=any("rank 1 " in text and "rank 0 " not in text for _, text in lines),
        same_result=result.exists() and (not expected or result.read_text() == expected),
    )


def main() -> int:
    """Run the drills and print a line for each; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    home = chosen.keep or Path(tempfile.mkdtemp(prefix="prism-nccl-"))
    expected, failed = "", False
    for fault in ("none", *chosen.faults):
        found = run(home / fault, fault, chosen.ranks, expected)
        if fault == "none" and found.done:
            expected = (home / fault / "result").read_text()
        failed |= not found.passed
        told = "" if found.told_after_s is None else f"told after {found.told_after_s:g} s"
        named = "rank 1 named" if found.rank_named else ""
        equal = "bit-equal" if found.same_result else "DIFFERS"
        words = [f"{fault:6}", "passed" if found.passed else "FAILED", f"{found.attempts} attempts", equal, told, named]
        print("  ".join(filter(None, words)), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
