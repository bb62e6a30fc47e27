"""How often clusters of ranks that wait, and those that are waited for, stand in whose code and do what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from prism.evidence.traces.consensus import Activity, find_activity
from prism.evidence.traces.stacks import Place, RankStack


class Roles:
    """Counts of one or several jobs."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {"waiting": Counter(), "awaited": Counter()}

    def add(self, stacks: Sequence[RankStack], victim: int) -> None:
        """One job; ranks with the same functions are one cluster."""
        for stack in {s.functions: s for s in stacks if not s.is_stopped and s.rank != victim}.values():
            self.counts["waiting"].update((stack.place, find_activity(stack)))
        for stack in stacks:
            if stack.rank == victim and not stack.is_stopped:
                self.counts["awaited"].update((stack.place, find_activity(stack)))

    def show(self) -> None:
        """Shares, each count plus one, as prism.evidence.traces.consensus holds them."""
        for role, counts in self.counts.items():
            for kind in (Place, Activity):
                total = sum(counts[word] + 1 for word in get_args(kind))
                shares = {word: round((counts[word] + 1) / total, 2) for word in get_args(kind)}
                print(role, shares, f"of {total - len(get_args(kind))}")
