"""The solver's inner loop: run every lane until it blocks, wake those that wait, repeat until nothing moves.

Time only ever flows forward along dependencies, so the order in which lanes are run does not change the result.
What belongs together lies together: one row per lane, call or waiting node, columns named below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from prism.simulate.solving.program import (
    BATCH_SHIFT,
    CODE_MASK,
    COMPUTE,
    EAGER_BIT,
    HOST,
    MARK,
    MEASURED_BIT,
    RECORD,
    SEND,
    WAIT,
    Code,
    Ints,
)
from prism.simulate.solving.windows import elapse
from prism.simulate.solving.wiring import PORT_CALLS, PORT_NEED, PORT_PROFILE, PORT_VARIANT, Wires

RUNNABLE, BLOCKED_ON_RECORD, BLOCKED_ON_TRANSFER, FINISHED = range(4)
UNSET, AWAITED = -1, -2
"""A record that has not happened, and one that has not happened while a lane waits for it."""

LANE_RANK, LANE_AT, LANE_STOP, LANE_TIME, LANE_STATUS, LANE_PENDING, LANE_RESUME, LANE_WIDTH = range(8)
"""A lane: its rank, next op and last, clock, status, transfers of its batch under way and the latest end of them."""
RANK_FIRST_OP, RANK_ID, RANK_PROFILE, RANK_PORTS, RANK_LANES, RANK_RECORDS, RANK_NOTES, RANK_WIDTH = range(8)
"""A solved rank: its class's first op, its real number, its windows, and where its own entries begin."""
CALL_ARRIVED, CALL_LATEST, CALL_COST, CALL_HEAD = range(4)
"""A call of a site: how many members arrived, the latest arrival, the highest price, and the first that waits."""
NODE_LANE, NODE_OP, NODE_TIME, NODE_COST, NODE_NEXT = range(5)
"""One side that waits for the others; its own cost where that was measured, else -1."""
STACK_SIZE, FREE_NODE, NUM_FINISHED, STACK_BOTTOM = range(4)
"""The first entries of the work list; the stack of runnable lanes follows."""
START, READY, END = range(3)
"""When an op became the next of its lane, when its last member arrived, and when it ended."""


class State(NamedTuple):
    """Where every lane is, who waits where, and what was noted; kept between calls when driven online."""

    lanes: Ints
    ranks: Ints
    calls: Ints
    nodes: Ints
    records: Ints  # when each record of each rank happened
    work: Ints
    step_end: Ints
    times: Ints  # one row per op of each solved rank; empty unless asked for


class Chance(NamedTuple):
    """Jitter as the kernel takes it."""

    seed: int
    compute_sigma: float
    communication_sigma: float


@njit(cache=True)
def draw_factor(seed: int, sigma: float, one: int, two: int) -> float:
    """A lognormal factor of mean 1 that depends only on its arguments (splitmix64, then Box and Muller)."""
    bits = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(one) * np.uint64(0xD1B54A32D192ED03)
    bits += np.uint64(two) * np.uint64(0x8CB92BA72F3D8DD7)
    length = 0.0
    angle = 0.0
    for i in range(2):
        bits += np.uint64(0x9E3779B97F4A7C15)
        x = bits
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        uniform = (np.float64(x >> np.uint64(11)) + 0.5) / 9007199254740992.0
        if i == 0:
            length = np.sqrt(-2.0 * np.log(uniform))
        else:
            angle = 2.0 * np.pi * uniform
    return float(np.exp(sigma * length * np.cos(angle) - 0.5 * sigma * sigma))


@njit(cache=True)
def finish_transfer(
    windows: npt.NDArray[np.float64], profiles: Ints, chance: Chance, profile: int, call: int, ready: int, cost: int
) -> int:
    """When a transfer that all sides have reached ends."""
    if chance.communication_sigma > 0.0:
        cost = int(np.rint(cost * draw_factor(chance.seed, chance.communication_sigma, call, np.int64(-1))))
    return elapse(windows, profiles, profile, ready, cost) if profile else ready + cost


@njit(cache=True, inline="always")
def advance(
    ops: Ints, lanes: Ints, ranks: Ints, records: Ints, work: Ints, step_end: Ints, times: Ints,
    windows: npt.NDArray[np.float64], profiles: Ints, chance: Chance, lane: int, top: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Run a lane's own ops until it reaches a transfer (RUNNABLE), a record that has not happened, or its end.

    Returns its next op, its time, its status, and the stack's top with the lanes that its records woke.
    It is written into the loops that call it: numba counts references to every array handed to a real function.
    """
    rank = lanes[lane, LANE_RANK]
    at, stop, now = lanes[lane, LANE_AT], lanes[lane, LANE_STOP], lanes[lane, LANE_TIME]
    profile = ranks[rank, RANK_PROFILE]
    note = ranks[rank, RANK_NOTES] - ranks[rank, RANK_FIRST_OP]
    status = FINISHED
    while at < stop:
        value = ops[at, 1]
        kind = ops[at, 0] & CODE_MASK
        if kind <= HOST:
            if chance.compute_sigma > 0.0:
                factor = draw_factor(chance.seed, chance.compute_sigma, ranks[rank, RANK_ID], at)
                value = int(np.rint(value * factor))
            end = elapse(windows, profiles, profile, now, value) if profile and kind == COMPUTE else now + value
            if times.shape[0] > 0:
                times[note + at, START] = now
                times[note + at, READY] = now
                times[note + at, END] = end
            now = end
        elif kind == MARK:
            if now > step_end[value]:
                step_end[value] = now
        elif kind == RECORD:
            record = ranks[rank, RANK_RECORDS] + ops[at, 2]
            awaited = records[record] == AWAITED
            records[record] = now
            if awaited:
                for other in range(ranks[rank, RANK_LANES], ranks[rank + 1, RANK_LANES]):
                    blocked = lanes[other, LANE_STATUS] == BLOCKED_ON_RECORD
                    if blocked and ops[lanes[other, LANE_AT], 2] == ops[at, 2]:
                        lanes[other, LANE_STATUS] = RUNNABLE
                        work[top] = other
                        top += 1
        elif kind == WAIT:
            record = ranks[rank, RANK_RECORDS] + ops[at, 2]
            if records[record] < 0:
                records[record] = AWAITED
                status = BLOCKED_ON_RECORD
                break
            now = max(now, records[record])
        else:
            status = RUNNABLE
            break
        at += 1
    return at, now, status, top


@njit(cache=True)
def run(wires: Wires, state: State, chance: Chance) -> None:
    """Run until no lane can move; the lanes' status shows whether all of them ended.

    One long function on purpose: numba counts references to every array handed to a helper, with atomic
    operations that made a collective cost 430 ns instead of 30 (Neoverse-N1).
    """
    ops, ports, costs, windows, profiles = wires.ops, wires.ports, wires.costs, wires.windows, wires.profiles
    lanes, ranks, calls, nodes, records = state.lanes, state.ranks, state.calls, state.nodes, state.records
    work, step_end, times = state.work, state.step_end, state.times
    plain = chance.communication_sigma == 0.0
    noting = times.shape[0] > 0
    top = STACK_BOTTOM + work[STACK_SIZE]
    while top > STACK_BOTTOM:
        top -= 1
        lane = work[top]
        rank = lanes[lane, LANE_RANK]
        note = ranks[rank, RANK_NOTES] - ranks[rank, RANK_FIRST_OP]
        status = RUNNABLE
        while status == RUNNABLE:
            at, now, status, top = advance(
                ops, lanes, ranks, records, work, step_end, times, windows, profiles, chance, lane, top
            )
            if status == RUNNABLE:
                size = ops[at, 0] >> BATCH_SHIFT
                resume = now
                # A message to itself (a folded ring) is delivered while the batch is still being issued.
                lanes[lane, LANE_PENDING] = size
                lanes[lane, LANE_RESUME] = now
                for op in range(at, at + size):
                    word, value = ops[op, 0], ops[op, 1]
                    entry = ranks[rank, RANK_PORTS] + ops[op, 2]
                    call = ports[entry, PORT_CALLS] + ops[op, 3]
                    site_profile = ports[entry, PORT_PROFILE]
                    measured = (word & MEASURED_BIT) != 0
                    cost = value if measured else costs[value + ports[entry, PORT_VARIANT]]
                    simple = plain and site_profile == 0
                    if noting:
                        times[note + op, START] = now
                    ready = end = now
                    complete = True
                    if word & EAGER_BIT:
                        if (word & CODE_MASK) == SEND:
                            end = finish_transfer(windows, profiles, chance, site_profile, call, now, cost)
                            calls[call, CALL_ARRIVED] = 1
                            calls[call, CALL_LATEST] = now
                            calls[call, CALL_COST] = end
                        elif calls[call, CALL_ARRIVED]:
                            ready = max(now, calls[call, CALL_LATEST])
                            end = max(now, calls[call, CALL_COST])
                        else:
                            complete = False
                    else:
                        arrived = calls[call, CALL_ARRIVED] + 1
                        calls[call, CALL_ARRIVED] = arrived
                        ready = max(now, calls[call, CALL_LATEST])
                        calls[call, CALL_LATEST] = ready
                        if not measured and cost > calls[call, CALL_COST]:
                            calls[call, CALL_COST] = cost
                        complete = arrived == ports[entry, PORT_NEED]
                        if complete:
                            end = ready + calls[call, CALL_COST]
                            if not simple:
                                dearest = calls[call, CALL_COST]
                                end = finish_transfer(windows, profiles, chance, site_profile, call, ready, dearest)
                    if not complete:
                        node = work[FREE_NODE]
                        work[FREE_NODE] = nodes[node, NODE_NEXT]
                        nodes[node, NODE_LANE] = lane
                        nodes[node, NODE_OP] = op
                        nodes[node, NODE_TIME] = now
                        nodes[node, NODE_COST] = cost if measured and not (word & EAGER_BIT) else -1
                        nodes[node, NODE_NEXT] = calls[call, CALL_HEAD]
                        calls[call, CALL_HEAD] = node
                        continue

                    node = calls[call, CALL_HEAD]
                    calls[call, CALL_HEAD] = -1
                    while node >= 0:
                        other = nodes[node, NODE_LANE]
                        came = nodes[node, NODE_TIME]
                        until = end
                        if nodes[node, NODE_COST] >= 0:
                            own = nodes[node, NODE_COST]
                            until = finish_transfer(windows, profiles, chance, site_profile, call, ready, own)
                        until = max(until, came)
                        if noting:
                            place = ranks[lanes[other, LANE_RANK], RANK_NOTES] + nodes[node, NODE_OP]
                            place -= ranks[lanes[other, LANE_RANK], RANK_FIRST_OP]
                            times[place, READY] = max(ready, came)
                            times[place, END] = until
                        lanes[other, LANE_RESUME] = max(lanes[other, LANE_RESUME], until)
                        lanes[other, LANE_PENDING] -= 1
                        if lanes[other, LANE_PENDING] == 0 and other != lane:
                            lanes[other, LANE_STATUS] = RUNNABLE
                            lanes[other, LANE_TIME] = lanes[other, LANE_RESUME]
                            work[top] = other
                            top += 1
                        following = nodes[node, NODE_NEXT]
                        nodes[node, NODE_NEXT] = work[FREE_NODE]
                        work[FREE_NODE] = node
                        node = following
                    if measured and not (word & EAGER_BIT):
                        end = finish_transfer(windows, profiles, chance, site_profile, call, ready, cost)
                    if noting:
                        times[note + op, READY] = ready
                        times[note + op, END] = end
                    resume = max(resume, end)
                    lanes[lane, LANE_PENDING] -= 1
                at += size
                now = max(resume, lanes[lane, LANE_RESUME])
                if lanes[lane, LANE_PENDING]:
                    lanes[lane, LANE_RESUME] = now
                    status = BLOCKED_ON_TRANSFER
            lanes[lane, LANE_AT] = at
            lanes[lane, LANE_TIME] = now
        lanes[lane, LANE_STATUS] = status
        if status == FINISHED:
            work[NUM_FINISHED] += 1
    work[STACK_SIZE] = top - STACK_BOTTOM


def make_state(code: Code, wires: Wires, lane_nodes: Ints, num_steps: int, *, note: bool) -> State:
    """Every lane at its first op and on the stack; `note` keeps the times of every op."""
    of_rank = wires.rank_class
    lanes_per_rank = np.diff(code.class_lane_start)[of_rank]
    lane_rank = np.repeat(np.arange(len(of_rank)), lanes_per_rank)
    num_lanes = len(lane_rank)
    ranks = np.zeros((len(of_rank) + 1, RANK_WIDTH), np.int64)
    ranks[:-1, RANK_FIRST_OP] = code.class_op_start[of_rank]
    ranks[:-1, RANK_ID], ranks[:-1, RANK_PROFILE] = wires.rank_id, wires.rank_profile
    ranks[:, RANK_PORTS] = wires.port_start
    ranks[1:, RANK_LANES] = np.cumsum(lanes_per_rank)
    ranks[1:, RANK_RECORDS] = np.cumsum(code.class_num_records[of_rank])
    ranks[1:, RANK_NOTES] = np.cumsum(np.diff(code.class_op_start)[of_rank])
    lane = np.arange(num_lanes) - ranks[lane_rank, RANK_LANES] + code.class_lane_start[of_rank[lane_rank]]
    lanes = np.zeros((num_lanes, LANE_WIDTH), np.int64)
    lanes[:, LANE_RANK], lanes[:, LANE_AT], lanes[:, LANE_STOP] = lane_rank, code.lane_begin[lane], code.lane_end[lane]
    calls = np.zeros((int(wires.site_start[-1]), 4), np.int64)
    calls[:, CALL_HEAD] = -1
    nodes = np.zeros((int(lane_nodes[lane].sum()) + 1, 5), np.int64)
    nodes[:, NODE_NEXT] = np.arange(1, len(nodes) + 1)
    work = np.zeros(STACK_BOTTOM + num_lanes, np.int64)
    work[STACK_SIZE] = num_lanes
    work[STACK_BOTTOM:] = np.arange(num_lanes)[::-1]
    return State(
        lanes=lanes,
        ranks=ranks,
        calls=calls,
        nodes=nodes,
        records=np.full(int(ranks[-1, RANK_RECORDS]), UNSET, np.int64),
        work=work,
        step_end=np.zeros(num_steps, np.int64),
        times=np.zeros((int(ranks[-1, RANK_NOTES]) if note else 0, 3), np.int64),
    )
