"""Host lists as Slurm writes them: `rack[1-2]n[01-03],gpu9`.

ClusterShell's NodeSet sorts what it expands, but the order of a list says which host is the first of a job, and it
builds any range up to a thousand million in memory.
"""

from __future__ import annotations

import itertools
import math
import re

_PIECE = re.compile(r"(?:[^,\s\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_NO_HOSTS = frozenset({"(null)", "none", "none assigned", "n/a"})
_MOST_HOSTS = 1_000_000  # of one list


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list, each once, in its order; a piece that is no host list is taken as one name."""
    if text.strip().lower() in _NO_HOSTS:
        return []
    hosts: dict[str, None] = {}
    for piece in _PIECE.findall(text):
        parts = [[plain] if plain else _expand_range(inside) for plain, inside in _PART.findall(piece)]
        if not all(parts) or len(hosts) + math.prod(map(len, parts)) > _MOST_HOSTS:
            hosts[piece] = None
        else:
            hosts.update(dict.fromkeys(map("".join, itertools.product(*parts))))
    return list(hosts)


def _expand_range(inside: str) -> list[str]:
    """`01-03,7` as 01, 02, 03, 7; nothing where it is no range."""
    found: list[str] = []
    for piece in inside.split(","):
        ends = _RANGE.fullmatch(piece.strip())
        first = ends[1] if ends else ""
        last = (ends[2] or first) if ends else ""
        if not ends or not 0 <= int(last) - int(first) < _MOST_HOSTS:
            return []
        found += (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return found
