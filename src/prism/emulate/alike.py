"""Recorded messages that answer for ranks too expensive to run: those between the same positions of a like group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from prism.emulate.families import Families
from prism.emulate.mailbox import Recording

_CHANNEL = re.compile(r"(?P<group>[^/]*)/(?P<source>\d+)>(?P<target>\d+)/(?P<tag>-?\d+)")
_Positions = tuple[str, int, int, str]  # family, positions of the source and the target, tag


def find_alike(recording: Recording, families: Families) -> Callable[[str], str | None]:
    """A function from a channel of messages to a recorded one of the same family between the same positions."""
    recorded: dict[_Positions, str] = {}
    for channel in recording.posts:
        found = _CHANNEL.fullmatch(channel)
        family = families.by_name.get(found["group"]) if found else None
        for positions in _list_positions(channel, families):
            if family is not None and positions[0] == family.slot:
                recorded.setdefault(positions, channel)

    def alike(channel: str) -> str | None:
        # The group's name may be new; two families that both hold the pair leave open which one is meant.
        candidates = {recorded[positions] for positions in _list_positions(channel, families) if positions in recorded}
        return candidates.pop() if len(candidates) == 1 else None

    return alike


def _list_positions(channel: str, families: Families) -> Iterator[_Positions]:
    found = _CHANNEL.fullmatch(channel)
    if found is None:
        return
    source, target = int(found["source"]), int(found["target"])
    for family in families.families:
        group, position = family.seat.get(source, (-1, -1))
        other, target_position = family.seat.get(target, (-2, -1))
        if group == other:
            yield family.slot, position, target_position, found["tag"]
