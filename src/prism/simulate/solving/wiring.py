"""Wire programs to ranks: which group or peer each port of each rank reaches, and what that costs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from prism.simulate.graph import Graph
from prism.simulate.solving.members import Members
from prism.simulate.solving.pricing import CostModel
from prism.simulate.solving.program import CODE_MASK, COLLECTIVE, MARK, MEASURED_BIT, Ints, Program
from prism.simulate.solving.slowdowns import Slowdown, Windows, pack_windows
from prism.simulate.solving.uneven import price_bytes

ROLES = ("collective", "send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """One entry per port of every rank: what it reaches, where that lies, and what slows it."""

    rank: Ints
    port: Ints
    role: Ints
    group: Ints
    source: Ints  # ranks of a message; -1 for a collective
    target: Ints
    lane: Ints  # distinguishes the messages between ranks of two cells of one group: how many positions they go
    position: Ints  # own position where the program depends on it, else -1
    placement: Ints
    profile: Ints  # window profile of the transfer
    rank_start: Ints  # a rank's ports lie from rank_start[r] to rank_start[r + 1]
    rank_class: Ints
    rank_profile: Ints
    members: Members
    placements: tuple[Hashable, ...]
    windows: Windows


class Wires(NamedTuple):
    """What the kernels read of the wiring; a site is one group's collectives or one directed channel."""

    ops: Ints  # the program's, with each price replaced by its first row in `costs`
    rank_class: Ints
    rank_id: Ints
    rank_profile: Ints
    port_start: Ints
    ports: Ints  # one row per port of each solved rank, columns below
    costs: Ints
    windows: npt.NDArray[np.float64]
    profiles: Ints
    site_start: Ints  # calls of site s are numbered from site_start[s]


PORT_CALLS, PORT_VARIANT, PORT_NEED, PORT_PROFILE = range(4)
"""A port: number of its site's first call, its placement's price column, arrivals that complete a call, its windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The wires of the ranks that are solved, and the way back to all ranks and groups."""

    wires: Wires
    cell: Ints  # which solved rank stands for each rank
    representative: Ints  # the real rank of each solved one
    port: Ints  # the port of each row of wires.ports
    site: Ints  # the site of each row of wires.ports
    group: Ints  # the real group of each site, one of those it stands for
    site_entry_start: Ints  # rows of wires.ports by site
    site_entry: Ints
    entry_rank: Ints


def connect(graph: Graph, program: Program, model: CostModel, slowdowns: Sequence[Slowdown] = ()) -> Connections:
    """Resolve every port of every rank to its group and peers, place it, and note what disturbs it."""
    members = _list_members(graph, program.slots)
    ranks = graph.ranks
    rank_class = np.searchsorted(program.classes, ranks["class"].to_numpy()).astype(np.int64)
    counts = np.diff(program.code.class_port_start)[rank_class]
    rank_start = np.r_[0, np.cumsum(counts)].astype(np.int64)
    rank = np.repeat(np.arange(len(rank_class)), counts)
    port = np.arange(rank_start[-1]) - rank_start[rank] + program.code.class_port_start[rank_class[rank]]
    group, position = _find_groups(members, program, rank, port, len(rank_class))
    ports = program.ports
    role = np.array([ROLES.index(r) for r in ports["role"]], np.int64)[port]
    peer, shift = (ports[c].fill_null(-1).cast(pl.Int64).to_numpy()[port] for c in ("peer", "shift"))
    size = np.diff(members.start)[group]
    other = np.where(shift >= 0, (position + shift) % size, peer)
    is_message = role > 0
    peer_rank = members.rank[members.start[group] + np.where(is_message, other, 0)]
    sends = role == 1
    # One end may name the other by position and be named by distance: both ends know how far the message goes.
    distance = np.where(sends, other - position, position - other) % size
    hosts, locals_ = ranks["host"].to_numpy(), ranks["local"].to_numpy()
    source = np.where(is_message, np.where(sends, rank, peer_rank), -1)
    target = np.where(is_message, np.where(sends, peer_rank, rank), -1)
    placement, placements = _place(model, members, hosts, locals_, group, source, target)
    profile, rank_profile, windows = _profile(slowdowns, members, hosts, group, source, target, len(rank_class))
    return Connections(
        rank=rank,
        port=port,
        role=role,
        group=group,
        source=source,
        target=target,
        lane=np.where(is_message, distance, 0),
        position=np.where(is_message & (shift < 0), position, -1),
        placement=placement,
        profile=profile,
        rank_start=rank_start,
        rank_class=rank_class,
        rank_profile=rank_profile,
        members=members,
        placements=placements,
        windows=windows,
    )


def wire(graph: Graph, program: Program, ports: Connections, model: CostModel, cell: Ints, colour: Ints) -> Wiring:
    """Wires for one rank per cell; groups of one colour become one site. Identities give every rank its own."""
    _, representative = np.unique(cell, return_index=True)
    counts = np.diff(ports.rank_start)[representative]
    port_start = np.r_[0, np.cumsum(counts)].astype(np.int64)
    entry_rank = np.repeat(np.arange(len(representative)), counts)
    entry = np.arange(port_start[-1]) - port_start[entry_rank] + ports.rank_start[representative[entry_rank]]
    is_message = ports.role[entry] > 0
    key = np.stack(
        [
            colour[ports.group[entry]],
            np.where(is_message, cell[ports.source[entry]], -1),
            np.where(is_message, cell[ports.target[entry]], -1),
            ports.lane[entry],
        ]
    )
    site, first = _number_columns(key)
    calls = program.ports["calls"].to_numpy()[ports.port[entry]]
    most = np.zeros(len(first), np.int64)
    np.maximum.at(most, site, calls)
    order = np.argsort(site, kind="stable")
    need = _count_arrivals(ports.members, cell, ports.group[entry[first]])
    variant, cost_start, cost_ns = _price(graph, program, ports, model, entry)
    site_start = np.r_[0, np.cumsum(most)].astype(np.int64)
    # Two sides make a message; a collective needs all its members.
    site_need = np.where(ports.role[entry[first]] > 0, 2, need)
    wires = Wires(
        ops=_point_to_prices(program, cost_start),
        rank_class=ports.rank_class[representative],
        rank_id=representative.astype(np.int64),
        rank_profile=ports.rank_profile[representative],
        port_start=port_start,
        ports=np.stack([site_start[site], variant, site_need[site], ports.profile[entry]], axis=1),
        costs=np.require(cost_ns, requirements="W"),  # kernels are compiled once more for arrays that are read-only
        windows=ports.windows.rows,
        profiles=ports.windows.start,
        site_start=site_start,
    )
    return Wiring(
        wires=wires,
        cell=cell,
        representative=representative.astype(np.int64),
        port=ports.port[entry],
        site=site,
        group=ports.group[entry[first]],
        site_entry_start=np.searchsorted(site[order], np.arange(len(first) + 1)).astype(np.int64),
        site_entry=order.astype(np.int64),
        entry_rank=entry_rank,
    )


def _list_members(graph: Graph, slots: tuple[str, ...]) -> Members:
    groups = graph.groups.sort("group", "position")
    number = {slot: i for i, slot in enumerate(slots)}
    slot = groups["slot"].replace_strict(number, default=-1, return_dtype=pl.Int64).to_numpy()
    ids, dense = np.unique(groups["group"].to_numpy(), return_inverse=True)
    return Members(
        group=dense.astype(np.int64),
        rank=groups["rank"].cast(pl.Int64).to_numpy(),
        slot=slot,
        start=np.searchsorted(dense, np.arange(len(ids) + 1)).astype(np.int64),
        ids=ids.astype(np.int64),
    )


def _find_groups(members: Members, program: Program, rank: Ints, port: Ints, num_ranks: int) -> tuple[Ints, Ints]:
    """The group behind each port and the rank's position in it."""
    if not len(port):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    entry_of = np.full((num_ranks, len(program.slots)), -1, np.int64)
    known = members.slot >= 0
    entry_of[members.rank[known], members.slot[known]] = np.flatnonzero(known)
    slot_number = {slot: i for i, slot in enumerate(program.slots)}
    slot = np.array([slot_number[s] for s in program.ports["slot"]], np.int64)[port]
    entry = entry_of[rank, slot]
    group = members.group[entry]
    return group, entry - members.start[group]


def _place(
    model: CostModel, members: Members, hosts: Ints, locals_: Ints, group: Ints, source: Ints, target: Ints
) -> tuple[Ints, tuple[Hashable, ...]]:
    """Ask the cost model what each group and each pair of ranks looks like to it."""
    numbers: dict[Hashable, int] = {}
    placement = np.zeros(len(group), np.int64)
    whole = source < 0
    used, inverse = np.unique(group[whole], return_inverse=True)
    found = np.empty(len(used), np.int64)
    for i, g in enumerate(used):
        ranks = members.rank[members.start[g] : members.start[g + 1]]
        found[i] = numbers.setdefault(model.place(hosts[ranks].tolist(), locals_[ranks].tolist()), len(numbers))
    placement[whole] = found[inverse]
    pairs = source[~whole] * len(hosts) + target[~whole]
    used, inverse = np.unique(pairs, return_inverse=True)
    one, two = used // max(len(hosts), 1), used % max(len(hosts), 1)
    ends = zip(hosts[one].tolist(), hosts[two].tolist(), locals_[one].tolist(), locals_[two].tolist(), strict=True)
    seen = [numbers.setdefault(model.place((a, b), (c, d)), len(numbers)) for a, b, c, d in ends]
    placement[~whole] = np.array(seen, np.int64)[inverse] if seen else 0
    return placement, tuple(numbers)


def _profile(
    slowdowns: Sequence[Slowdown],
    members: Members,
    hosts: Ints,
    group: Ints,
    source: Ints,
    target: Ints,
    num_ranks: int,
) -> tuple[Ints, Ints, Windows]:
    """Which set of slowdowns holds for each transfer and each rank, and the windows of each such set."""
    sets: dict[tuple[int, ...], int] = {(): 0}
    on_rank: dict[int, list[int]] = {}
    on_entry: dict[int, list[int]] = {}
    low = np.full(len(members.ids), np.iinfo(np.int64).max)
    np.minimum.at(low, members.group, hosts[members.rank])
    high = np.full(len(members.ids), -1, np.int64)
    np.maximum.at(high, members.group, hosts[members.rank])
    whole = source < 0
    for i, slow in enumerate(slowdowns):
        if slow.target == "rank":
            on_rank.setdefault(slow.id, []).append(i)
            continue
        if slow.target == "group":
            touched = members.ids[group] == slow.id
        else:
            inside = np.zeros(len(members.ids), bool)
            inside[members.group[hosts[members.rank] == slow.id]] = True
            crossing = inside & (low != high)
            pair = (hosts[source] == slow.id) != (hosts[target] == slow.id)
            touched = np.where(whole, crossing[group], pair)
        for entry in np.flatnonzero(touched).tolist():
            on_entry.setdefault(entry, []).append(i)
    profile, rank_profile = np.zeros(len(group), np.int64), np.zeros(num_ranks, np.int64)
    for table, found in ((profile, on_entry), (rank_profile, on_rank)):
        for where, indices in found.items():
            table[where] = sets.setdefault(tuple(indices), len(sets))
    return profile, rank_profile, pack_windows([[slowdowns[i] for i in chosen] for chosen in sets])


def _count_arrivals(members: Members, cell: Ints, groups: Ints) -> Ints:
    """How many arrivals complete a collective of each group: its distinct members, seen as (cell, slot)."""
    key = np.stack([members.group, cell[members.rank], members.slot])
    distinct = np.unique(key, axis=1)
    return np.bincount(distinct[0], minlength=len(members.ids)).astype(np.int64)[groups]


def _price(
    graph: Graph, program: Program, ports: Connections, model: CostModel, entry: Ints
) -> tuple[Ints, Ints, Ints]:
    """Price each distinct transfer of a port once for every placement that its ranks give it."""
    pairs = np.stack([ports.port[entry], ports.placement[entry]])
    number, first = _number_columns(pairs)
    port_of, placement_of = pairs[0][first], pairs[1][first]
    begin = np.searchsorted(port_of, np.arange(program.ports.height + 1))
    variant = number - begin[ports.port[entry]]
    cost_port = program.costs["port"].to_numpy()
    widths = np.diff(begin)[cost_port]
    cost_start = np.r_[0, np.cumsum(widths)].astype(np.int64)
    cost = np.repeat(np.arange(len(cost_port)), widths)
    column = begin[cost_port[cost]] + np.arange(len(cost)) - cost_start[cost]
    kinds = program.costs["kind"].to_numpy()[cost]
    sizes = price_bytes(graph, program, ports.rank_class, ports.members)
    sizes = np.rint(sizes / program.costs["widened"].to_numpy()).astype(np.int64)[cost]
    if not len(cost):
        return variant, cost_start, np.zeros(0, np.int64)
    prices = model.price(kinds.tolist(), sizes, placement_of[column].astype(np.int64), ports.placements)
    return variant, cost_start, np.asarray(prices, np.int64)


def _point_to_prices(program: Program, cost_start: Ints) -> Ints:
    """The ops with the number of their price replaced by where its prices begin."""
    ops = program.code.ops.copy()
    kind = ops[:, 0] & CODE_MASK
    priced = (kind >= COLLECTIVE) & (kind < MARK) & (ops[:, 0] & MEASURED_BIT == 0)
    ops[priced, 1] = cost_start[ops[priced, 1]]
    return ops


def _number_columns(key: Ints) -> tuple[Ints, Ints]:
    """Dense numbers of equal columns, in sorted order, and where each occurs first."""
    if key.shape[1] == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    frame = pl.DataFrame({str(i): row for i, row in enumerate(key)}).with_row_index("at")
    columns = [str(i) for i in range(len(key))]
    distinct = frame.group_by(columns).agg(pl.col("at").min()).sort(columns).with_row_index("number")
    numbers = frame.join(distinct.drop("at"), on=columns, how="left", maintain_order="left")["number"]
    return numbers.cast(pl.Int64).to_numpy(), distinct["at"].cast(pl.Int64).to_numpy()
