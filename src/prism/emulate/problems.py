"""What would go wrong on a cluster: the problem, whose ranks have it, and at which line of the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prism.errors import GraphError

_RANKS = re.compile(r"\branks? (\d+(?:(?:, | and )\d+(?! more))*)")
_PLACE = re.compile(r"(?:\(|at )([^\s()]+:\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Calls of ranks that do not meet."""

    verdict: Literal["hang", "mismatch"]
    text: str
    ranks: tuple[int, ...]
    source: str  # file and line, as train.py:12; empty where no line of the program is known
    outcome: str = "hang"

    @property
    def file(self) -> str | None:
        """The file of the program; None where it is not known."""
        return self.source.rpartition(":")[0] or None

    @property
    def line(self) -> int | None:
        """The line, counted from one."""
        number = self.source.rpartition(":")[2]
        return int(number) if number.isdecimal() else None


class CallsDifferError(GraphError):
    """Ranks make calls that do not meet."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"this would {problem.outcome} on a cluster: {problem.text}")
        self.problem = problem


def read_problem(text: str) -> Problem:
    """A hang that was found in a graph or by waiting ranks, of which only the sentence is left."""
    place = _PLACE.search(text)
    return Problem(verdict="hang", text=text, ranks=list_ranks(text), source=place[1] if place else "")


def list_ranks(text: str) -> tuple[int, ...]:
    """The ranks that a sentence names."""
    found = (re.findall(r"\d+", ranks) for ranks in _RANKS.findall(text))
    return tuple(sorted({int(rank) for ranks in found for rank in ranks}))


def odd_problem(text: str, ranks: Sequence[int], source: str, outcome: str = "hang") -> Problem:
    """A call of these ranks that differs from those of the others."""
    return Problem(verdict="mismatch", text=text, ranks=tuple(sorted(ranks)), source=source, outcome=outcome)


def hang_problem(text: str, ranks: Sequence[int], source: str) -> Problem:
    """A call that these ranks do not make, or that waits for itself."""
    return Problem(verdict="hang", text=text, ranks=tuple(sorted(ranks)), source=source)
