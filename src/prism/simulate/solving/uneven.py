"""An all-to-all with per-peer sizes lasts as long as its busiest member, which sends or receives the most."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.simulate.graph import Graph
from prism.simulate.solving.members import Members
from prism.simulate.solving.program import Ints, Program


def price_bytes(graph: Graph, program: Program, rank_class: Ints, members: Members) -> Ints:
    """The bytes to price of every cost; of an uneven all-to-all those of the busiest member of the class's group."""
    sizes = program.costs["bytes"].cast(pl.Int64).to_numpy().copy()
    uneven = program.costs.filter(pl.col("uneven_call") >= 0)
    if uneven.is_empty():
        return sizes
    slot_number = {slot: i for i, slot in enumerate(program.slots)}
    collective = program.ports.filter(pl.col("role") == "collective")
    port_of = {(c, slot_number[s]): p for c, s, p in collective.select("class_index", "slot", "port").iter_rows()}
    class_of_port = dict(collective.select("port", "class_index").iter_rows())
    slot_of_port = {p: slot_number[s] for p, s in collective.select("port", "slot").iter_rows()}
    lists = graph.ops["sizes"]
    busiest: dict[tuple[int, int], int] = {}
    for cost, port, call in uneven.select("cost", "port", "uneven_call").iter_rows():
        group = _first_group(members, rank_class, class_of_port[port], slot_of_port[port])
        if (group, call) not in busiest:
            span = slice(members.start[group], members.start[group + 1])
            rows = []
            for rank, slot in zip(members.rank[span], members.slot[span], strict=True):
                member_port = port_of[(int(rank_class[rank]), int(slot))]
                op = program.port_ops[program.port_op_start[member_port] + call]
                rows.append(lists[int(program.row[op])])
            matrix = np.array([r.to_numpy() for r in rows if r is not None])
            busiest[group, call] = int(max(matrix.sum(axis=1).max(), matrix.sum(axis=0).max()))
        sizes[cost] = busiest[group, call]
    return sizes


def _first_group(members: Members, rank_class: Ints, class_index: int, slot: int) -> int:
    found = (rank_class[members.rank] == class_index) & (members.slot == slot)
    return int(members.group[np.argmax(found)])
