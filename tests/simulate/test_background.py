"""Other jobs' traffic: shares worked out by hand, loads measured from flows, and words that users type."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from max_min import max_min_rates
from test_contention import CAPACITY, COSTS, ONE_NIC, SIZE, price, senders

from prism.cli.main import main
from prism.errors import InputError
from prism.simulate import Cluster, ClusterCosts, GraphBuilder, LinearCosts, Plan, SolveConfig, apply_change
from prism.simulate.cluster import Fabric, Nics
from prism.simulate.cluster_file import write_cluster
from prism.simulate.graph import save_graph
from prism.simulate.links import FlowLinks, link_capacities, link_number
from prism.simulate.what_if.background import LinkLoad, add_background, measure_background
from prism.simulate.what_if.comparison import solve_plan

# Two leaves of two hosts, one NIC each, one spine: a leaf's uplink carries what two NICs do.
LEAVES = Cluster(
    name="leaves",
    num_hosts=4,
    gpus_per_host=1,
    nics=Nics(count=1),
    fabric=Fabric(hosts_per_leaf=2, num_spines=1, rail_optimized=False),
)


def across(hosts: list[tuple[int, int]]):
    """Messages between hosts, all at once."""
    builder = GraphBuilder("across")
    ranks = sorted({host for pair in hosts for host in pair})
    for _ in hosts:
        builder.program().send("pp", SIZE, peer=1)
    for _ in hosts:
        builder.program().recv("pp", SIZE, peer=0)
    seats = [src for src, _ in hosts] + [dst for _, dst in hosts]
    assert len(ranks) == len(seats)
    builder.ranks(np.arange(len(seats)), np.arange(len(seats)), np.array(seats), np.zeros(len(seats), int))
    builder.groups("pp", [[i, len(hosts) + i] for i in range(len(hosts))])
    return builder.build()


def solve(graph, costs, *changes: str, contention: bool = True) -> int:
    plan = Plan(graph=graph, config=SolveConfig(note_ops=True))
    for change in changes:
        plan = apply_change(plan, change)
    return solve_plan(plan, costs, contention=contention).solution.total_ns


def test_transfers_share_what_neighbours_leave_of_a_nic():
    # Two messages through one NIC of which neighbours hold 40 %: each gets 0.3 of it.
    found = solve(senders([0, 0], [SIZE, SIZE]), COSTS, "host-0 load 0.4")
    assert found == pytest.approx(SIZE / (0.3 * CAPACITY), abs=3)


def test_the_share_is_that_of_max_min_with_neighbours_as_small_flows():
    # By progressive filling: 40 neighbours that want 1 % of the NIC each keep it, two greedy messages get 0.3 each.
    count = 42
    flows = FlowLinks(np.arange(count + 1), np.zeros(count, np.int64))
    rates = max_min_rates(np.array([CAPACITY]), flows, np.r_[np.full(40, 0.01 * CAPACITY), [np.inf, np.inf]])
    assert rates[-2:] == pytest.approx([0.3 * CAPACITY] * 2)
    ends = solve(senders([0, 0], [SIZE, SIZE]), COSTS, "host-0 load 0.4")
    assert ends == pytest.approx(SIZE / rates[-1], abs=3)


def test_an_uplink_is_shared_only_by_what_crosses_it():
    # The uplink carries two NICs' rate; with half of it held by neighbours two messages get half a NIC each, and one
    # message alone still finds a whole NIC.
    costs = ClusterCosts(LEAVES)
    rate = float(link_capacities(LEAVES)[0])
    both = across([(0, 2), (1, 3)])
    assert solve(both, costs) == pytest.approx(solve(across([(0, 2)]), costs), abs=2)
    assert solve(both, costs, "leaf-0 load 0.5") == pytest.approx(2 * SIZE / rate, abs=3)
    assert solve(across([(0, 2)]), costs, "leaf-0 load 0.5") == solve(across([(0, 2)]), costs)
    assert solve(across([(0, 1)]), costs, "uplinks load 0.9") == solve(across([(0, 1)]), costs)


def test_the_folded_solver_prices_the_slowest_link_alike():
    costs = ClusterCosts(LEAVES)
    plain, loaded = (solve(across([(0, 2)]), costs, *c, contention=False) for c in ((), ("leaf-0>spine-0 load 0.75",)))
    assert loaded - plain == pytest.approx(SIZE / float(link_capacities(LEAVES)[0]), rel=0.05)
    assert solve(across([(0, 2)]), costs, "uplinks load 0.0", contention=False) == plain


def test_loads_of_one_link_add_up_and_no_more_than_nearly_all_of_it_is_taken():
    number = link_number(ONE_NIC, "host-0/nic-0", "leaf-0")
    twice = add_background(ONE_NIC, [LinkLoad(where="host-0", load=0.3), LinkLoad(where="host-0", load=0.2)])
    assert link_capacities(twice)[number] == pytest.approx(0.5 * CAPACITY)
    full = add_background(ONE_NIC, [LinkLoad(where="host-0", load=0.9), LinkLoad(where="host-0", load=0.9)])
    assert link_capacities(full)[number] == pytest.approx(0.01 * CAPACITY)


def test_loads_are_measured_from_the_flows_of_other_jobs():
    rate = float(link_capacities(LEAVES)[0])  # bytes per ns
    topology = pl.DataFrame(
        {"address": ["a9", "a10", "a11", "a12"], "host": ["n-9", "n-10", "n-11", "n-12"], "rail": [0] * 4}
    )
    second = 1_000_000_000
    flows = pl.DataFrame(
        {
            "start_ns": [0, 0, second],
            "end_ns": [second, 2 * second, 2 * second],
            "src": ["a9", "a11", "a9"],
            "dst": ["a11", "a12", "elsewhere"],
            "bytes": [round(0.8 * rate * second), round(0.2 * rate * second), 10**15],
        }
    )
    found = {entry.where: entry.load for entry in measure_background(flows, topology, LEAVES)}
    # n-9 to n-11 moves 0.8 of a NIC's rate in one second of two; the uplink is twice as wide.
    expected = {
        "host-0/nic-0>leaf-0": 0.4,
        "leaf-0>spine-0": 0.2,
        "spine-0>leaf-1": 0.2,
        "leaf-1>host-2/nic-0": 0.4,
        "host-2/nic-0>leaf-1": 0.1,
        "leaf-1>host-3/nic-0": 0.1,
    }
    assert found == pytest.approx(expected)
    held = add_background(LEAVES, measure_background(flows, topology, LEAVES))
    assert link_capacities(held)[0] == pytest.approx(0.6 * rate)


def test_loads_are_measured_from_records_without_an_end():
    topology = pl.DataFrame({"address": ["a", "b"], "host": ["n-0", "n-1"], "rail": [0, 0]})
    flows = pl.DataFrame(
        {"start_ns": [0, 1_000_000_000], "end_ns": [None, None], "src": ["a", "a"], "dst": ["b", "b"], "bytes": [1, 1]},
        schema_overrides={"end_ns": pl.Int64},
    )
    assert measure_background(flows, topology, ONE_NIC)


@pytest.mark.parametrize(("size", "code"), [(10**9, 0), (0, 2)])
def test_the_command_reads_the_topology_that_the_other_commands_read(tmp_path, capsys, size, code):
    save_graph(across([(0, 2)]), tmp_path / "graph")
    write_cluster(LEAVES, tmp_path / "leaves.yaml")
    (tmp_path / "topology.csv").write_text("address,host,rail,switch\n10.0.0.1,n-1,0,leaf-0\n10.0.0.2,n-2,0,leaf-0\n")
    (tmp_path / "others.csv").write_text(f"start_ns,end_ns,src,dst,bytes\n0,1000000000,10.0.0.1,10.0.0.2,{size}\n")
    files = ["--background", str(tmp_path / "others.csv"), "--topology", str(tmp_path / "topology.csv")]
    with pytest.raises(SystemExit) as exit:
        main(["simulate", str(tmp_path / "graph"), "--cluster", str(tmp_path / "leaves.yaml"), *files, "--json"])
    assert exit.value.code == code
    assert ("other jobs load" if size else "carry no bytes") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [("spine-9 load 0.4", "no link"), ("uplinks load 1.5", "from 0 to"), ("uplinks load x", "not a number")],
)
def test_a_load_that_cannot_be_is_one_clear_line(change: str, words: str):
    with pytest.raises(InputError, match=words):
        solve(senders([0], [SIZE]), COSTS, change)


def test_a_background_needs_a_described_cluster_and_flows_that_meet_it():
    with pytest.raises(InputError, match="--cluster"):
        solve(senders([0], [SIZE]), LinearCosts(), "uplinks load 0.4")
    empty = pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "src": str, "dst": str, "bytes": pl.Int64})
    topology = pl.DataFrame({"address": ["a"], "host": ["n"], "rail": [0]})
    with pytest.raises(InputError, match="no flow"):
        measure_background(empty, topology, LEAVES)


def test_collnet_is_refused_by_name():
    with pytest.raises(InputError, match="CollNet"):
        Cluster(nccl_algo=("collnet_direct",))  # type: ignore[arg-type]


def test_alone_a_message_takes_its_price():
    assert solve(senders([0], [SIZE]), COSTS) == price(SIZE)
