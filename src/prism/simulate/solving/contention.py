"""Solve in time order, with transfers that share links slowing each other down max-min fairly.

A transfer that has its links to itself takes its price. Where the links cannot carry all that wants through at that
pace, each transfer advances at its fair share, and shares are computed again whenever a transfer starts or ends.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from prism.errors import BadConfigError
from prism.simulate.costs import ClusterCosts
from prism.simulate.graph import Graph
from prism.simulate.links import link_capacities
from prism.simulate.solving.deadlock import explain_deadlock
from prism.simulate.solving.folding import no_folding
from prism.simulate.solving.kernel import (
    BLOCKED_ON_TRANSFER,
    CALL_ARRIVED,
    CALL_COST,
    CALL_HEAD,
    CALL_LATEST,
    END,
    FINISHED,
    FREE_NODE,
    LANE_AT,
    LANE_PENDING,
    LANE_RANK,
    LANE_RESUME,
    LANE_STATUS,
    LANE_TIME,
    NODE_LANE,
    NODE_NEXT,
    NODE_OP,
    NUM_FINISHED,
    RANK_FIRST_OP,
    RANK_NOTES,
    RANK_PORTS,
    READY,
    RUNNABLE,
    STACK_BOTTOM,
    START,
    Chance,
    State,
    advance,
    make_state,
)
from prism.simulate.solving.program import (
    BATCH_SHIFT,
    MEASURED_BIT,
    Ints,
    compile_program,
)
from prism.simulate.solving.shared_links import find_site_links, op_traffic
from prism.simulate.solving.sharing import fill_rates
from prism.simulate.solving.solver import Solution, SolveConfig, check_slowdowns, scale_bandwidth
from prism.simulate.solving.windows import elapse
from prism.simulate.solving.wiring import PORT_CALLS, PORT_NEED, PORT_PROFILE, PORT_VARIANT, Wires, connect, wire
from prism.simulate.structure import check_structure

Floats = npt.NDArray[np.float64]

_LANE, _END = 0, 1  # kinds of events
_FULL = 1 + 1e-9  # demands are added up and taken away in floating point


def solve_shared(graph: Graph, costs: ClusterCosts, config: SolveConfig | None = None) -> Solution:
    """Like `solve` for a described cluster, unfolded, with concurrent transfers sharing its links."""
    config = config or SolveConfig()
    if config.jitter is not None or config.eager_bytes >= 0:
        raise BadConfigError("shared links are solved without jitter and eager messages; leave those out")
    check_structure(graph)
    check_slowdowns(graph, config.slowdowns)
    program = scale_bandwidth(graph, compile_program(graph), config.bandwidth)
    ports = connect(graph, program, costs, config.slowdowns)
    alone = no_folding(ports)
    wiring = wire(graph, program, ports, costs, alone.cell, alone.colour)
    cluster = costs.cluster.holding(int(graph.ranks["host"].max() or 0) + 1)  # type: ignore[arg-type]
    links = find_site_links(graph, ports, wiring, cluster)
    state = make_state(program.code, wiring.wires, program.lane_nodes, len(program.steps), note=config.note_ops)
    capacity = np.array(link_capacities(cluster))
    run_shared(
        wiring.wires, state, op_traffic(graph, program), wiring.site, links.start, links.links, links.share, capacity,
        Chance(0, 0.0, 0.0),
    )  # fmt: skip
    if state.work[NUM_FINISHED] < len(state.lanes):
        raise explain_deadlock(graph, program, wiring, state)
    return Solution(graph=graph, program=program, wiring=wiring, state=state, step_end_ns=state.step_end)


@njit(cache=True)
def _share(
    active: Ints, size: int, seed_site: int, call_site: Ints, site_start: Ints, site_links: Ints,
    capacity: Floats, demand: Floats, caps: Floats, rates: Floats,
) -> Ints:  # fmt: skip
    """New rates of all active transfers that compete with a site's, directly or through others; returns which."""
    marked = np.zeros(len(capacity), np.bool_)
    chosen = np.zeros(size, np.bool_)
    for place in range(site_start[seed_site], site_start[seed_site + 1]):
        link = site_links[place]
        marked[link] = demand[link] > capacity[link] * _FULL
    grown = True
    while grown:
        grown = False
        for i in range(size):
            site = call_site[active[i]]
            if chosen[i]:
                continue
            for place in range(site_start[site], site_start[site + 1]):
                if marked[site_links[place]]:
                    chosen[i] = grown = True
                    break
            if chosen[i]:
                for place in range(site_start[site], site_start[site + 1]):
                    link = site_links[place]
                    marked[link] |= demand[link] > capacity[link] * _FULL
    flows = active[:size][chosen]
    compact = np.full(len(capacity), -1, np.int64)
    start = np.zeros(len(flows) + 1, np.int64)
    for i in range(len(flows)):
        site = call_site[flows[i]]
        for place in range(site_start[site], site_start[site + 1]):
            start[i + 1] += marked[site_links[place]]
    start = np.cumsum(start)
    room = capacity[marked]
    compact[marked] = np.arange(len(room))
    links = np.empty(start[-1], np.int64)
    count = np.zeros(len(room) + 1, np.int64)
    for i in range(len(flows)):
        site, at = call_site[flows[i]], start[i]
        for place in range(site_start[site], site_start[site + 1]):
            if marked[site_links[place]]:
                links[at] = compact[site_links[place]]
                count[links[at] + 1] += 1
                at += 1
    link_start = np.cumsum(count)
    fill = link_start.copy()
    link_flows = np.empty(len(links), np.int64)
    for i in range(len(flows)):
        for place in range(start[i], start[i + 1]):
            link_flows[fill[links[place]]] = i
            fill[links[place]] += 1
    if len(flows):
        rates[flows] = fill_rates(room, start, links, link_start, link_flows, caps[flows])
    return flows


@njit(cache=True)
def _change(
    events: Any, now: int, active: Ints, size: int, site: int, call_site: Ints, site_start: Ints, site_links: Ints,
    capacity: Floats, demand: Floats, caps: Floats, rates: Floats, left: Floats, since: Ints, epoch: Ints, pace: Floats,
) -> None:  # fmt: skip
    """Update the transfers that a start or an end affects, and predict their ends again."""
    for call in _share(active, size, site, call_site, site_start, site_links, capacity, demand, caps, rates):
        left[call] -= (now - since[call]) * pace[call]
        since[call] = now
        pace[call] = rates[call] / caps[call]
        epoch[call] += 1
        end = now + int(np.rint(max(left[call], 0.0) / pace[call]))
        heapq.heappush(events, (end, _END, call, epoch[call]))


@njit(cache=True)
def run_shared(
    wires: Wires, state: State, traffic: Floats, port_site: Ints, site_start: Ints, site_links: Ints,
    site_share: Floats, capacity: Floats, chance: Chance,
) -> None:  # fmt: skip
    """The loop over events in order of time: lanes reach transfers, transfers start, share links, and end."""
    ops, ports, costs, windows, profiles = wires.ops, wires.ports, wires.costs, wires.windows, wires.profiles
    lanes, ranks, calls, nodes, records = state.lanes, state.ranks, state.calls, state.nodes, state.records
    work, step_end, times = state.work, state.step_end, state.times
    noting = times.shape[0] > 0
    num_calls = len(calls)
    call_site, since = np.zeros(num_calls, np.int64), np.zeros(num_calls, np.int64)
    caps, rates, left = np.zeros(num_calls), np.zeros(num_calls), np.zeros(num_calls)
    epoch, pace = np.zeros(num_calls, np.int64), np.ones(num_calls)  # earlier predictions do not count; 1 is full pace
    active, size = np.zeros(num_calls, np.int64), 0
    slot = np.full(num_calls, -1, np.int64)
    demand = np.zeros(len(capacity))
    events = [(np.int64(0), _LANE, np.int64(lane), np.int64(0)) for lane in range(len(lanes))]
    while len(events):
        now, what, subject, mark = heapq.heappop(events)
        if what == _END:
            call = subject
            if mark != epoch[call]:
                continue
            epoch[call] += 1
            site = call_site[call]
            if slot[call] >= 0:
                size -= 1
                active[slot[call]] = active[size]
                slot[active[size]] = slot[call]
                slot[call] = -1
                crowded = False
                for place in range(site_start[site], site_start[site + 1]):
                    crowded |= demand[site_links[place]] > capacity[site_links[place]] * _FULL
                    demand[site_links[place]] -= caps[call]
                if crowded:
                    # Links that were full until now may no longer be: treat them as if they still were.
                    for place in range(site_start[site], site_start[site + 1]):
                        demand[site_links[place]] += caps[call]
                    _change(events, now, active, size, site, call_site, site_start, site_links, capacity, demand, caps,
                            rates, left, since, epoch, pace)  # fmt: skip
                    for place in range(site_start[site], site_start[site + 1]):
                        demand[site_links[place]] -= caps[call]
            node = calls[call, CALL_HEAD]
            while node >= 0:
                lane = nodes[node, NODE_LANE]
                if noting:
                    rank = lanes[lane, LANE_RANK]
                    place = ranks[rank, RANK_NOTES] + nodes[node, NODE_OP] - ranks[rank, RANK_FIRST_OP]
                    times[place, READY] = calls[call, CALL_LATEST]
                    times[place, END] = now
                lanes[lane, LANE_PENDING] -= 1
                if lanes[lane, LANE_PENDING] == 0:
                    lanes[lane, LANE_TIME] = now
                    lanes[lane, LANE_STATUS] = RUNNABLE
                    heapq.heappush(events, (now, _LANE, lane, np.int64(0)))
                following = nodes[node, NODE_NEXT]
                nodes[node, NODE_NEXT] = work[FREE_NODE]
                work[FREE_NODE] = node
                node = following
            continue

        lane = subject
        rank = lanes[lane, LANE_RANK]
        note = ranks[rank, RANK_NOTES] - ranks[rank, RANK_FIRST_OP]
        at, clock, status, top = advance(
            ops, lanes, ranks, records, work, step_end, times, windows, profiles, chance, lane, STACK_BOTTOM
        )
        for woken in range(STACK_BOTTOM, top):
            heapq.heappush(events, (now, _LANE, work[woken], np.int64(0)))
        if status == RUNNABLE and clock > now:
            # Transfers must start in the order of time, so this lane continues later, in its turn.
            heapq.heappush(events, (clock, _LANE, lane, np.int64(0)))
        elif status == RUNNABLE:
            batch = ops[at, 0] >> BATCH_SHIFT
            lanes[lane, LANE_PENDING] = batch
            lanes[lane, LANE_RESUME] = now
            for op in range(at, at + batch):
                entry = ranks[rank, RANK_PORTS] + ops[op, 2]
                site, call = port_site[entry], ports[entry, PORT_CALLS] + ops[op, 3]
                cost = ops[op, 1]
                if not ops[op, 0] & MEASURED_BIT:
                    cost = costs[cost + ports[entry, PORT_VARIANT]]
                node = work[FREE_NODE]
                work[FREE_NODE] = nodes[node, NODE_NEXT]
                nodes[node, NODE_LANE] = lane
                nodes[node, NODE_OP] = op
                nodes[node, NODE_NEXT] = calls[call, CALL_HEAD]
                calls[call, CALL_HEAD] = node
                calls[call, CALL_ARRIVED] += 1
                calls[call, CALL_LATEST] = now
                calls[call, CALL_COST] = max(calls[call, CALL_COST], cost)
                if noting:
                    times[note + op, START] = now
                if calls[call, CALL_ARRIVED] < ports[entry, PORT_NEED]:
                    continue
                whole = calls[call, CALL_COST]
                if ports[entry, PORT_PROFILE]:
                    whole = elapse(windows, profiles, ports[entry, PORT_PROFILE], now, whole) - now
                call_site[call] = site
                heapq.heappush(events, (now + whole, _END, call, epoch[call]))
                if site_start[site] == site_start[site + 1] or whole == 0 or traffic[op] == 0.0:
                    continue
                left[call], since[call] = float(whole), now
                wanted = traffic[op] * site_share[site] / whole
                # A transfer alone is never slowed down: its price already includes its links.
                for place in range(site_start[site], site_start[site + 1]):
                    wanted = min(wanted, capacity[site_links[place]])
                caps[call] = rates[call] = wanted
                slot[call] = size
                active[size] = call
                size += 1
                crowded = False
                for place in range(site_start[site], site_start[site + 1]):
                    demand[site_links[place]] += caps[call]
                    crowded |= demand[site_links[place]] > capacity[site_links[place]] * _FULL
                if crowded:
                    _change(events, now, active, size, site, call_site, site_start, site_links, capacity, demand,
                            caps, rates, left, since, epoch, pace)  # fmt: skip
            at += batch
            status = BLOCKED_ON_TRANSFER
        lanes[lane, LANE_AT] = at
        lanes[lane, LANE_TIME] = clock
        lanes[lane, LANE_STATUS] = status
        if status == FINISHED:
            work[NUM_FINISHED] += 1
