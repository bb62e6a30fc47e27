"""Results of soak runs in a file of JSON lines, so that several short sessions add up to one long soak."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import prism


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultNote:
    """One fault, and what it cost by the harness's own clock."""

    name: str
    step: int
    kept: int  # the newest checkpoint that was committed before it and not damaged by it; 0: none
    restored: int
    seconds: float  # to the first step after it

    @property
    def lost_checkpoint(self) -> bool:
        """Whether an older state was restored than storage held."""
        return self.restored < self.kept


def fingerprint() -> str:
    """Which code was under test: a hash of the sources of supervision, checkpoints and explanations."""
    root = Path(prism.__file__).parent
    digest = hashlib.sha256()
    for folder in ("explain", "recover"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(slots=True, kw_only=True)
class Tally:
    """One run under faults, as the harness saw it by its own clock."""

    program: str  # prism, torchrun
    seed: int
    faults: int = 0  # that were done
    reached: int = 0
    finished: bool = False
    false_stop: bool = False  # it ended, or was ended, although it could have gone on
    weights: str = ""
    equal: bool = False  # to the weights of an undisturbed run, to the bit
    wall_s: float = 0.0
    lost_s: float = 0.0  # beyond the undisturbed run
    why: str = ""
    goodput_apart: float | None = None  # what `prism goodput` calls lost against what was seen, as a share of the run
    code: str = ""  # empty: made before it was written down
    notes: list[FaultNote] = field(default_factory=list)


class Ledger:
    """Runs that were made, by program and seed."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.tallies: list[Tally] = []
        if path is not None and path.exists():
            self.tallies = [_read_tally(line) for line in path.read_text().splitlines()]

    def has(self, program: str, seed: int) -> bool:
        """Whether this run was made before."""
        return any((one.program, one.seed) == (program, seed) for one in self.tallies)

    def add(self, tally: Tally) -> None:
        """Keep a run, on disk before the next begins."""
        self.tallies.append(tally)
        if self.path is not None:
            with self.path.open("a") as handle:
                handle.write(json.dumps(asdict(tally)) + "\n")


def _read_tally(line: str) -> Tally:
    found = json.loads(line)
    found["notes"] = [FaultNote(**note) for note in found.get("notes", [])]
    return Tally(**found)


def summarize(tallies: Sequence[Tally], planned: int) -> list[str]:
    """One line per program: runs finished, weights equal, faults survived, time lost, false stops."""
    lines = []
    for program in sorted({one.program for one in tallies}):
        runs = [one for one in tallies if one.program == program]
        finished = [one for one in runs if one.finished]
        lost = sum(one.lost_s for one in finished)
        per_fault = lost / max(1, sum(one.faults for one in finished))
        lines.append(
            f"{program:9} {len(finished)} of {len(runs)} runs finished, {sum(one.equal for one in runs)} with equal "
            f"weights; {sum(one.faults for one in runs)} of {len(runs) * planned} faults were reached; "
            f"false stops {sum(one.false_stop for one in runs)}; runs that finished lost {lost:.0f} s "
            f"({per_fault:.1f} s a fault)"
        )
        notes = [note for one in runs for note in one.notes]
        if notes:
            apart = [one.goodput_apart for one in runs if one.goodput_apart is not None]
            by_code = Counter(one.code for one in runs for _ in one.notes)
            lines.append(
                f"{'':9} checkpoints lost {sum(note.lost_checkpoint for note in notes)} of {len(notes)} faults; "
                f"goodput at most {max(apart, default=math.nan):.2%} of a run from what was seen; "
                f"faults by code under test: {', '.join(f'{code or chr(63)} {n}' for code, n in by_code.items())}"
            )
    return lines
