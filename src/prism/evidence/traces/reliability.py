"""How often what ranks left behind names the right rank, counted on hangs of programs.

Each situation that dumps or logs of ranks can be in has a count: how often exactly the culprits were named, of how many
cases. `python -m proving.benchmarks.hangs.fit FOLDER` prints the table anew. A situation that was never seen is as good
as a coin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Situation = Literal[
    "odd_call",  # one member of a collective made another call than most
    "odd_call_tied",  # as many made the one as the other
    "pattern_broken",  # only one rank's calls broke their own pattern
    "patterns_broken",  # several ranks' did; the first is named
    "came_early",  # one rank alone came, sooner than ever
    "absent",  # others wait in a call that these did not enter
    "most_absent",  # as above, and they are more than those that wait
    "no_dump",  # others wait, and all that left a dump have entered
    "no_dump_nothing_pending",  # all came equally far, and these left no dump
    "deadlock",  # ranks wait for each other in different groups
    "beyond_message",  # a rank waits in a message, and these are its neighbours
    "failed_first",  # by their logs; the others lost a peer
    "failed_by_size",  # as above, for a message of another size, which may be its sender's fault
    "silent",  # by their logs; the others lost a peer
    "none",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityConfig:
    """Cases in which exactly the culprits were named, and all cases: 97 hangs over gloo, of 2 to 16 ranks."""

    counts: Mapping[Situation, tuple[int, int]] = field(
        default_factory=lambda: {
            "odd_call": (10, 10),
            "pattern_broken": (18, 18),
            "came_early": (1, 1),
            "absent": (21, 24),
            "most_absent": (1, 1),
            "no_dump": (13, 16),
            "no_dump_nothing_pending": (7, 14),
            "failed_first": (8, 8),
            "failed_by_size": (5, 10),
            "silent": (7, 7),
        }
    )


def be_sure(situation: Situation, config: ReliabilityConfig | None = None) -> float:
    """The probability that what is named in a situation is right, with one right and one wrong case added."""
    right, of = (config or ReliabilityConfig()).counts.get(situation, (0, 0))
    return round((right + 1) / (of + 2), 2)
