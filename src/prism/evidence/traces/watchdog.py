"""What PyTorch's NCCL watchdog writes into every rank's log on a timeout: how many calls each rank had made.

The rank with the fewest is the one that the others wait for; it is known even if no dump was written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TAIL_BYTES = 4 << 20
_PREFIX = re.compile(r"\[(?:rank|default)(\d{1,7})\]:")
_GROUP = re.compile(r"PG GUID ([^\s(]{1,100})[^\]]{0,200}\]")
_RANK = re.compile(r" Rank (\d{1,7})\]")
_COUNT = re.compile(r"[Ll]ast enqueued NCCL work: (\d{1,18})")
_LONGEST_LINE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Ranks that had made fewer calls of a group than its other members when the watchdog gave up."""

    group: str
    ranks: tuple[int, ...]
    enqueued: int
    most: int
    members: int


def find_behind(paths: Iterable[Path]) -> Behind | None:
    """The ranks that were behind in the group that most ranks report; None where all had made the same calls."""
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    for path in paths:
        for line in _tail(path).splitlines():
            told = [pattern.search(line[:_LONGEST_LINE]) for pattern in (_GROUP, _RANK, _COUNT)]
            if told[0] and told[1] and told[2]:
                # In groups of some ranks the number is the one in the group; the line's own prefix has the global one.
                rank = _PREFIX.match(line) or told[1]
                counts[told[0][1]][int(rank[1])] = int(told[2][1])
    for group, by_rank in sorted(counts.items(), key=lambda item: -len(item[1])):
        least, most = min(by_rank.values()), max(by_rank.values())
        ranks = tuple(sorted(r for r, n in by_rank.items() if n == least))
        if least < most and 2 * len(ranks) <= len(by_rank):
            return Behind(group=group, ranks=ranks, enqueued=least, most=most, members=len(by_rank))
    return None


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            data = handle.read(_TAIL_BYTES)
    except OSError:
        return ""
    return data.decode("utf-8", "replace") if b"enqueued NCCL work" in data else ""
