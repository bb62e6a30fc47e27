"""The most memory a rank held."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes at the worst moment, and how they are known."""

    allocated: int
    reserved: int
    how: str  # "allocator" or "counted"
    requested: int = 0  # what the program asked for; allocated also holds what the allocator could not split off
