"""Results of soak runs in a file of JSON lines, so that several short sessions add up to one long soak."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


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


class Ledger:
    """Runs that were made, by program and seed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.tallies: list[Tally] = []
        if path is not None and path.exists():
            self.tallies = [Tally(**json.loads(line)) for line in path.read_text().splitlines()]

    def has(self, program: str, seed: int) -> bool:
        """Whether this run was made before."""
        return any((one.program, one.seed) == (program, seed) for one in self.tallies)

    def add(self, tally: Tally) -> None:
        """Keep a run, on disk before the next begins."""
        self.tallies.append(tally)
        if self._path is not None:
            with self._path.open("a") as handle:
                handle.write(json.dumps(asdict(tally)) + "\n")


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
    return lines
