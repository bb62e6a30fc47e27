"""Fold symmetric ranks: split ranks into cells whose members provably run at the same times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.simulate.solving.program import Ints
from prism.simulate.solving.wiring import Connections

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # increments and multipliers of splitmix64 (Steele et al., OOPSLA 2014)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folding:
    """Which cell each rank falls in, and which colour each group has; ranks of a cell share all their times."""

    cell: Ints
    colour: Ints


def fold(ports: Connections) -> Folding:
    """The coarsest partition in which ranks of a cell run one program, at one speed, with alike groups and peers.

    This is colour refinement: start from what a rank is, then split cells whose ranks have unlike groups or peers
    until nothing splits. Signatures are compared by 64-bit hashes: n of them collide with probability n^2 / 2^65.
    """
    members = ports.members
    num_ranks, num_groups = len(ports.rank_class), len(members.ids)
    local = ports.port - ports.port[ports.rank_start[ports.rank]]
    size = np.diff(members.start)[ports.group]
    fixed = _mix(local, ports.placement, ports.profile, ports.position, size)
    base = _mix(ports.rank_class, ports.rank_profile) + _add_up(ports.rank, fixed, num_ranks)
    cell = _number(base)
    peer = np.where(ports.source == ports.rank, ports.target, ports.source)
    while True:
        member_sign = _mix(cell[members.rank], members.slot)
        group_sign = _add_up(members.group, member_sign, num_groups)
        seen = np.where(ports.role > 0, cell[peer], -1)
        port_sign = _mix(local, group_sign[ports.group], seen)
        refined = _number(_mix(cell) + _add_up(ports.rank, port_sign, num_ranks))
        if refined.max(initial=0) == cell.max(initial=0):
            return Folding(cell=cell, colour=_number(group_sign))
        cell = refined


def no_folding(ports: Connections) -> Folding:
    """Every rank on its own."""
    return Folding(cell=np.arange(len(ports.rank_class)), colour=np.arange(len(ports.members.ids)))


def _mix(*parts: np.ndarray) -> np.ndarray:
    """One well-spread 64-bit number per entry from several integers."""
    state = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        state = state + part.astype(np.int64).view(np.uint64) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _FIRST
        state = (state ^ (state >> np.uint64(27))) * _SECOND
        state = state ^ (state >> np.uint64(31))
    return state


def _add_up(where: Ints, values: np.ndarray, size: int) -> np.ndarray:
    """Sums of values by place, wrapping around; the order of the values does not matter."""
    out = np.zeros(size, np.uint64)
    np.add.at(out, where, values)
    return out


def _number(signs: np.ndarray) -> Ints:
    """Dense numbers of equal signatures."""
    return np.unique(signs, return_inverse=True)[1].astype(np.int64)
