"""Programs and wires by hand: what the kernels are given to walk."""

from __future__ import annotations

import numpy as np
import pytest

from prism.simulate import GraphBuilder, LinearCosts, Slowdown
from prism.simulate.graph import Graph
from prism.simulate.solving.program import (
    BATCH_SHIFT,
    CODE_MASK,
    COLLECTIVE,
    COMPUTE,
    EAGER_BIT,
    HOST,
    MARK,
    MEASURED_BIT,
    RECORD,
    RECV,
    SEND,
    WAIT,
    Program,
    compile_program,
    replace_durations,
)  # fmt: skip
from prism.simulate.solving.wiring import PORT_CALLS, PORT_NEED, PORT_PROFILE, PORT_VARIANT, Wiring, connect, wire

COSTS = LinearCosts()
SIZE = 10_000_000


def make_ring(num: int = 4, hosts: int = 2) -> Graph:
    """Ranks of one class that compute, pass a message to the next, and sum."""
    builder = GraphBuilder("ring")
    program = builder.program()
    program.compute("work", 100)
    with program.batch():
        program.send("ring", SIZE, shift=1)
        program.recv("ring", SIZE, shift=-1)
    program.all_reduce("all", 1000)
    program.all_reduce("all", 1000)
    builder.ranks(np.arange(num), np.zeros(num, int), np.arange(num) * hosts // num, np.arange(num) % (num // hosts))
    builder.group("ring", range(num))
    builder.group("all", range(num))
    return builder.build()


def codes(program: Program) -> list[int]:
    return (program.code.ops[:, 0] & CODE_MASK).tolist()


def wire_all(graph: Graph, slowdowns: tuple[Slowdown, ...] = ()) -> tuple[Program, Wiring]:
    """Every rank and every group for itself."""
    program = compile_program(graph)
    ports = connect(graph, program, COSTS, slowdowns)
    return program, wire(graph, program, ports, COSTS, np.arange(graph.num_ranks), np.arange(len(ports.members.ids)))


def test_ops_lie_in_the_order_of_their_lane_with_a_mark_after_each_step() -> None:
    builder = GraphBuilder("lanes")
    program = builder.program()
    program.step = 0
    program.compute("one", 5, stream=1)
    program.host("zero", 7)
    program.step = 1
    program.compute("two", 6, stream=1)
    builder.rank(0, program)
    found = compile_program(builder.build())
    assert codes(found) == [HOST, MARK, COMPUTE, MARK, COMPUTE, MARK]
    assert found.code.ops[:, 1].tolist() == [7, 0, 5, 0, 6, 1]  # a duration, or the number of the step
    assert found.row.tolist() == [1, -1, 0, -1, 2, -1]
    assert (found.code.lane_begin.tolist(), found.code.lane_end.tolist()) == ([0, 2], [2, 6])
    assert (found.lane_stream.tolist(), found.steps.tolist()) == ([0, 1], [0, 1])


def test_a_wait_holds_for_the_last_record_of_its_event_on_another_stream() -> None:
    builder = GraphBuilder("events")
    program = builder.program()
    first = program.record(stream=1)
    program.wait(first, stream=0)
    program.wait(program.record(stream=1), stream=1)  # its own stream: holds nothing
    program.record(stream=1)  # nobody waits for it
    program.wait(program.record(stream=2), stream=0)
    builder.rank(0, program)
    found = compile_program(builder.build())
    where = found.code.ops[:, 2]
    kinds = np.array(codes(found))
    assert (kinds == RECORD).sum() == 2 and (kinds == WAIT).sum() == 2
    assert where[kinds == WAIT].tolist() == [0, 1] and sorted(where[kinds == RECORD].tolist()) == [0, 1]
    assert found.code.class_num_records.tolist() == [2]


def test_a_port_is_one_peer_or_the_collectives_of_a_slot_and_shifts_are_taken_around() -> None:
    found = compile_program(make_ring())
    rows = found.ports.select("slot", "role", "shift", "calls").rows()
    assert rows == [("all", "collective", None, 2), ("ring", "recv", 3, 1), ("ring", "send", 1, 1)]
    assert found.slots == ("all", "ring")
    assert [found.port_ops_of(port).tolist() for port in range(3)] == [[3, 4], [2], [1]]
    assert found.code.ops[[3, 4], 3].tolist() == [0, 1]  # first and second call of the port


def test_a_batch_has_its_size_on_its_first_op_and_others_have_one() -> None:
    found = compile_program(make_ring())
    sizes = found.code.ops[:, 0] >> BATCH_SHIFT
    assert sizes.tolist() == [0, 2, 0, 1, 1, 0]
    assert codes(found) == [COMPUTE, SEND, RECV, COLLECTIVE, COLLECTIVE, MARK]
    assert found.lane_nodes.tolist() == [2]


@pytest.mark.parametrize(("eager_bytes", "eager"), [(-1, 0), (SIZE - 1, 0), (SIZE, EAGER_BIT)])
def test_messages_up_to_a_size_are_eager(eager_bytes: int, eager: int) -> None:
    ops = compile_program(make_ring(), eager_bytes=eager_bytes).code.ops
    assert (ops[[1, 2], 0] & EAGER_BIT).tolist() == [eager] * 2
    assert not (ops[[0, 3, 4, 5], 0] & EAGER_BIT).any()


def test_equal_transfers_of_a_port_are_priced_once_and_measured_ones_never() -> None:
    builder = GraphBuilder("prices")
    program = builder.program()
    for size in (1000, 1000, 2000):
        program.all_reduce("all", size)
    program.collective("all_reduce", "all", 1000, duration_ns=77)
    program.all_to_all("all", 3, sizes=[1, 2])
    program.all_to_all("all", 3, sizes=[1, 2])
    builder.ranks([0, 1], [0, 0], [0, 0], [0, 1])
    builder.group("all", [0, 1])
    found = compile_program(builder.build())
    assert sorted(found.costs.select("kind", "bytes").rows()) == [
        ("all_reduce", 1000), ("all_reduce", 2000), ("all_to_all", 3), ("all_to_all", 3),
    ]  # fmt: skip
    ops = found.code.ops
    assert ops[0, 1] == ops[1, 1] != ops[2, 1]
    assert (ops[:, 0] & MEASURED_BIT > 0).tolist() == [False, False, False, True, False, False, False]
    assert ops[3, 1] == 77 and ops[4, 1] != ops[5, 1]  # uneven ones are priced by their busiest member


def test_durations_are_replaced_where_an_op_has_one() -> None:
    found = compile_program(make_ring())
    other = replace_durations(found, np.arange(5) * 11 + 3)
    assert other.code.ops[0, 1] == 3 and (other.code.ops[1:] == found.code.ops[1:]).all()
    assert found.code.ops[0, 1] == 100, "the first program is as it was"


def test_ports_of_a_ring_reach_the_next_and_the_one_before() -> None:
    graph = make_ring()
    program = compile_program(graph)
    ports = connect(graph, program, COSTS)
    assert ports.rank_start.tolist() == [0, 3, 6, 9, 12]
    sends, receives = ports.role == 1, ports.role == 2
    assert ports.target[sends].tolist() == [1, 2, 3, 0] and ports.source[sends].tolist() == [0, 1, 2, 3]
    assert ports.source[receives].tolist() == [3, 0, 1, 2] and ports.target[receives].tolist() == [0, 1, 2, 3]
    assert ports.source[ports.role == 0].tolist() == [-1] * 4
    assert ports.lane[sends | receives].tolist() == [1] * 8 and set(ports.position.tolist()) == {-1}
    inside, between = ports.placement[sends][[0, 2]], ports.placement[sends][[1, 3]]
    assert len(set(inside)) == 1 and len(set(between)) == 1 and inside[0] != between[0]


def test_both_ends_of_a_message_meet_at_one_site_and_a_collective_needs_all() -> None:
    graph = make_ring()
    _, wiring = wire_all(graph)
    wires = wiring.wires
    assert len(wires.site_start) - 1 == 4 + 1  # four messages, and the group's collectives
    assert np.diff(wires.site_start).tolist() == [1, 1, 1, 1, 2]
    assert wires.ports[:, PORT_NEED].tolist() == [4, 2, 2] * 4
    sites = wiring.site.reshape(4, 3)
    for rank in range(4):
        receives, sends = sites[rank, 1], sites[rank, 2]
        assert sends == sites[(rank + 1) % 4, 1] and receives == sites[rank - 1, 2]
    assert (wires.ports[:, PORT_CALLS] == wires.site_start[wiring.site]).all()
    assert np.diff(wiring.site_entry_start).tolist() == [2, 2, 2, 2, 4]


def test_prices_are_those_of_the_model_for_each_placement() -> None:
    graph = make_ring()
    program, wiring = wire_all(graph)
    wires = wiring.wires
    kind = wires.ops[:, 0] & CODE_MASK
    sends = wires.ports[2::3]
    first = wires.ops[kind == SEND, 1][0]
    near, far = (int(wires.costs[first + sends[rank, PORT_VARIANT]]) for rank in (0, 1))
    assert near != far and sends[0, PORT_VARIANT] == sends[2, PORT_VARIANT]
    both = connect(graph, program, COSTS)
    pairs = [both.placements[both.placement[both.role == 1][rank]] for rank in (0, 1)]
    expected = COSTS.price(["send"] * 2, np.array([SIZE, SIZE]), np.array([0, 1]), tuple(pairs))
    assert [near, far] == np.asarray(expected).tolist()


def test_ranks_of_one_cell_are_solved_once() -> None:
    graph = make_ring(hosts=1)
    program = compile_program(graph)
    ports = connect(graph, program, COSTS)
    folded = wire(graph, program, ports, COSTS, np.zeros(4, np.int64), np.zeros(2, np.int64))
    assert folded.representative.tolist() == [0] and folded.wires.rank_id.tolist() == [0]
    assert folded.wires.ports[:, PORT_NEED].tolist() == [1, 2, 2]
    assert folded.site[1] == folded.site[2], "a message to the next of the same cell comes from the one before"


def test_slowdowns_are_on_ranks_groups_and_what_leaves_a_host() -> None:
    graph = make_ring()
    slow = (
        Slowdown(target="rank", id=2, speed=0.5),
        Slowdown(target="group", id=1, speed=0.5),
        Slowdown(target="host", id=0, speed=0.5),
    )
    program = compile_program(graph)
    ports = connect(graph, program, COSTS, slow)
    assert (ports.rank_profile > 0).tolist() == [False, False, True, False]
    collective, sends = ports.profile[ports.role == 0], ports.profile[ports.role == 1]
    assert len(set(collective)) == 1 and collective[0] > 0  # the group and its host
    assert (sends > 0).tolist() == [False, True, False, True]  # from the host to the other and back
    assert sends[1] == sends[3] != collective[0]
    _, wiring = wire_all(graph, slow)
    assert (wiring.wires.ports[:, PORT_PROFILE] == ports.profile).all()


def test_a_graph_without_communication_has_no_ports() -> None:
    builder = GraphBuilder("alone")
    program = builder.program()
    program.compute("work", 5)
    builder.rank(0, program)
    graph = builder.build()
    _, wiring = wire_all(graph)
    assert wiring.wires.ports.shape == (0, 4) and len(wiring.wires.costs) == 0
