"""Who is in which group."""

from __future__ import annotations

from dataclasses import dataclass

from prism.simulate.solving.program import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Who is in which group, sorted by group and position; groups are numbered densely."""

    group: Ints
    rank: Ints
    slot: Ints  # number of the slot by which this member knows the group
    start: Ints  # members of group g lie from start[g] to start[g + 1]
    ids: Ints  # a group's number in GROUPS
