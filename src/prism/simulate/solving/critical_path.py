"""The critical path: the chain of ops that made the run take as long as it did."""

from __future__ import annotations

import numpy as np
import polars as pl
from numba import njit

from prism.errors import BadConfigError
from prism.simulate.graph import label_groups
from prism.simulate.solving.kernel import (
    END,
    LANE_RANK,
    LANE_STOP,
    LANE_TIME,
    RANK_FIRST_OP,
    RANK_NOTES,
    RANK_PORTS,
    RANK_RECORDS,
    READY,
    START,
)
from prism.simulate.solving.program import (
    BATCH_SHIFT,
    CODE_MASK,
    COLLECTIVE,
    EAGER_BIT,
    HOST,
    MARK,
    RECORD,
    RECV,
    SEND,
    WAIT,
    Ints,
)
from prism.simulate.solving.solver import Solution

PATH = pl.Schema(
    {
        "rank": pl.Int32, "seq": pl.Int32, "kind": pl.String, "name": pl.String, "step": pl.Int32,
        "group": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
    }
)  # fmt: skip


def find_critical_path(solution: Solution) -> pl.DataFrame:
    """The path's segments in time order, without gaps from 0 to the end; ranks stand for all of their cell."""
    state, program, wiring = solution.state, solution.program, solution.wiring
    if not len(state.times):
        raise BadConfigError("the times of single ops were not kept; solve with note_ops=True")
    last = int(np.argmax(state.lanes[:, LANE_TIME]))
    record_op, record_start = _locate_records(solution)
    rank, op, begin, end = _walk_back(
        wiring.wires.ops, state.lanes, state.ranks, state.times, state.records, wiring.wires.rank_class,
        record_op, record_start, wiring.site, wiring.site_entry_start, wiring.site_entry,
        wiring.entry_rank, wiring.port, program.port_op_start, program.port_ops, last,
    )  # fmt: skip
    rows = pl.DataFrame({"row": program.row[op], "rank": wiring.representative[rank], "start_ns": begin, "end_ns": end})
    talks = _is_transfer(program.code.ops[op, 0])
    entry = np.where(talks, state.ranks[rank, RANK_PORTS] + program.code.ops[op, 2], 0)
    labels = label_groups(solution.graph)["label"].to_list()
    names = [labels[wiring.group[wiring.site[e]]] if t else None for e, t in zip(entry, talks, strict=True)]
    ops = solution.graph.ops.with_row_index("row").select(
        pl.col("row").cast(pl.Int64), "seq", pl.col("kind").cast(pl.String), "name", "step"
    )
    path = rows.with_columns(pl.Series("group", names, pl.String)).join(ops, on="row", maintain_order="left")
    return path.select(pl.col(name).cast(dtype) for name, dtype in PATH.items())


def share_path(path: pl.DataFrame, by: str) -> pl.DataFrame:
    """How much of the path each kind, rank, name or group holds, most first."""
    held = path.group_by(by).agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
    whole = max(int(held["ns"].sum()), 1)
    return held.with_columns((pl.col("ns") / whole).alias("share")).sort("ns", by, descending=[True, False])


def _is_transfer(word: Ints) -> np.ndarray:
    kind = word & CODE_MASK
    return (kind >= COLLECTIVE) & (kind < MARK)


def _locate_records(solution: Solution) -> tuple[Ints, Ints]:
    """The op that makes each record of each class."""
    code = solution.program.code
    start = np.r_[0, np.cumsum(code.class_num_records)].astype(np.int64)
    at = np.flatnonzero((code.ops[:, 0] & CODE_MASK) == RECORD)
    owner = np.searchsorted(code.class_op_start, at, side="right") - 1
    table = np.zeros(int(start[-1]), np.int64)
    table[start[owner] + code.ops[at, 2]] = at
    return table, start


@njit(cache=True)
def _walk_back(
    ops: Ints, lanes: Ints, ranks: Ints, times: Ints, records: Ints, rank_class: Ints, record_op: Ints,
    record_start: Ints, entry_site: Ints, site_entry_start: Ints, site_entry: Ints, entry_rank: Ints,
    entry_port: Ints, port_op_start: Ints, port_ops: Ints, last: int,
) -> tuple[Ints, Ints, Ints, Ints]:  # fmt: skip
    """From the last op to time 0: through the lane, the record waited for, or the member that arrived last."""
    rank, at, now = lanes[last, LANE_RANK], lanes[last, LANE_STOP] - 1, lanes[last, LANE_TIME]
    out_rank, out_op, out_begin, out_end = [np.int64(0)], [np.int64(0)], [np.int64(0)], [np.int64(0)]
    while now > 0:
        word = ops[at, 0]
        kind = word & CODE_MASK
        note = ranks[rank, RANK_NOTES] - ranks[rank, RANK_FIRST_OP]
        if kind in (MARK, RECORD):
            at -= 1
            continue
        if kind == WAIT:
            if records[ranks[rank, RANK_RECORDS] + ops[at, 2]] == now:
                at = record_op[record_start[rank_class[rank]] + ops[at, 2]]
            at -= 1
            continue
        if kind <= HOST:
            out_rank.append(rank)
            out_op.append(at)
            out_begin.append(times[note + at, START])
            out_end.append(now)
            now = times[note + at, START]
            at -= 1
            continue
        first = at
        while ops[first, 0] >> BATCH_SHIFT == 0:
            first -= 1
        chosen = first
        for op in range(first, first + (ops[first, 0] >> BATCH_SHIFT)):
            if times[note + op, END] == now:
                chosen = op
                break
        came, ready = times[note + chosen, START], times[note + chosen, READY]
        # A receive whose message did not wait for it goes on with the send; any other with the last to arrive.
        follow_send = (ops[chosen, 0] & EAGER_BIT) != 0 and kind == RECV and now > came
        if not follow_send:
            if ready < now:
                out_rank.append(rank)
                out_op.append(chosen)
                out_begin.append(ready)
                out_end.append(now)
            now = ready
        if follow_send or came < now:
            site = entry_site[ranks[rank, RANK_PORTS] + ops[chosen, 2]]
            for place in range(site_entry_start[site], site_entry_start[site + 1]):
                entry = site_entry[place]
                index = port_op_start[entry_port[entry]] + ops[chosen, 3]
                if index >= port_op_start[entry_port[entry] + 1]:
                    continue
                other, op = entry_rank[entry], port_ops[index]
                sends = (ops[op, 0] & CODE_MASK) == SEND
                found = ranks[other, RANK_NOTES] - ranks[other, RANK_FIRST_OP] + op
                if (follow_send and sends) or (not follow_send and times[found, START] == now):
                    rank, at = other, op
                    break
        if follow_send:
            continue
        while ops[at, 0] >> BATCH_SHIFT == 0:
            at -= 1
        at -= 1
    size = len(out_rank) - 1
    result = (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64))
    for i in range(size):
        result[0][i], result[1][i] = out_rank[size - i], out_op[size - i]
        result[2][i], result[3][i] = out_begin[size - i], out_end[size - i]
    return result
