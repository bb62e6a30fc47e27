"""Links and how transfers share them: every law of max-min fairness, on any network."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max_min import max_min_rates

from prism.simulate.cluster import Cluster, Link
from prism.simulate.cluster_file import load_cluster
from prism.simulate.links import FlowLinks, link_capacities, link_name, link_number, links_of, links_of_many

CLOSE = 1e-6


def flows_of(paths: list[list[int]]) -> FlowLinks:
    start = np.cumsum([0, *map(len, paths)])
    return FlowLinks(start.astype(np.int64), np.array([link for path in paths for link in path], np.int64))


@st.composite
def networks(draw: st.DrawFn) -> tuple[np.ndarray, list[list[int]], np.ndarray]:
    num_links = draw(st.integers(1, 8))
    capacity = draw(st.lists(st.floats(0, 100) | st.just(10.0), min_size=num_links, max_size=num_links))
    path = st.lists(st.integers(0, num_links - 1), unique=True, min_size=1, max_size=4)
    paths = draw(st.lists(path, min_size=1, max_size=12))
    cap = st.floats(0, 100) | st.just(np.inf) | st.just(5.0)
    caps = draw(st.lists(cap, min_size=len(paths), max_size=len(paths)))
    return np.array(capacity), paths, np.array(caps)


@given(networks())
def test_no_link_and_no_flow_goes_over_its_limit(network) -> None:
    capacity, paths, caps = network
    rates = max_min_rates(capacity, flows_of(paths), caps)
    load = np.zeros(len(capacity))
    for rate, path in zip(rates, paths, strict=True):
        load[path] += rate
    assert (load <= capacity * (1 + CLOSE) + CLOSE).all()
    assert (rates <= caps * (1 + CLOSE)).all()
    assert (rates >= 0).all()


@given(networks())
def test_every_flow_meets_its_cap_or_is_among_the_fastest_on_a_full_link(network) -> None:
    # This is the bottleneck condition, which holds for exactly one allocation: the max-min fair one.
    capacity, paths, caps = network
    rates = max_min_rates(capacity, flows_of(paths), caps)
    for rate, path, cap in zip(rates, paths, caps, strict=True):
        if rate >= cap * (1 - CLOSE):
            continue
        bottlenecks = []
        for link in path:
            on_link = [r for r, p in zip(rates, paths, strict=True) if link in p]
            full = sum(on_link) >= capacity[link] * (1 - CLOSE) - CLOSE
            bottlenecks.append(full and rate >= max(on_link) * (1 - CLOSE) - CLOSE)
        assert any(bottlenecks)


@given(networks(), st.floats(0.01, 100))
def test_scaling_the_network_scales_the_rates(network, factor) -> None:
    capacity, paths, caps = network
    before = max_min_rates(capacity, flows_of(paths), caps)
    after = max_min_rates(capacity * factor, flows_of(paths), caps * factor)
    np.testing.assert_allclose(after, before * factor, rtol=1e-6, atol=1e-9)


@given(networks(), st.randoms())
def test_the_order_of_flows_does_not_matter(network, random) -> None:
    capacity, paths, caps = network
    order = list(range(len(paths)))
    random.shuffle(order)
    shuffled = max_min_rates(capacity, flows_of([paths[i] for i in order]), caps[order])
    np.testing.assert_allclose(shuffled, max_min_rates(capacity, flows_of(paths), caps)[order], rtol=1e-6, atol=1e-9)


def test_a_textbook_case() -> None:
    # Two flows share a link of 10; one of them also crosses a link of 2, so the other gets 8.
    assert max_min_rates(np.array([10.0, 2.0]), flows_of([[0], [0, 1]])).tolist() == [8.0, 2.0]


def test_a_link_of_almost_nothing_ends_the_filling() -> None:
    smallest = np.nextafter(0.0, 1.0)  # half of it rounds to nothing
    assert max_min_rates(np.array([smallest]), flows_of([[0], [0], [0]])).max() <= smallest


def test_a_flow_without_links_runs_at_its_cap() -> None:
    rates = max_min_rates(np.array([10.0]), flows_of([[], [0]]), np.array([3.0, np.inf]))
    assert rates.tolist() == [3.0, 10.0]
    assert max_min_rates(np.array([10.0]), flows_of([])).tolist() == []


@pytest.fixture(scope="module")
def h100() -> Cluster:
    return load_cluster("dgx-h100", num_hosts=64)


def test_transfers_inside_a_host_cross_no_link(h100) -> None:
    assert len(links_of(h100, (3, 0), (3, 7))) == 0


def test_one_rail_below_one_leaf_crosses_two_links_and_pods_are_joined_by_a_spine(h100) -> None:
    near = [link_name(h100, i) for i in links_of(h100, (0, 2), (31, 2))]
    assert near == ["host-0/nic-2>leaf-2", "leaf-2>host-31/nic-2"]
    far = [link_name(h100, i) for i in links_of(h100, (0, 2), (32, 2))]
    assert [far[0], far[3]] == ["host-0/nic-2>leaf-2", "leaf-10>host-32/nic-2"]
    assert far[1].startswith("leaf-2>spine-")
    assert far[2] == f"{far[1].removeprefix('leaf-2>')}>leaf-10"


def test_another_rail_is_reached_through_nvlink_where_there_is_any(h100) -> None:
    assert [link_name(h100, i) for i in links_of(h100, (0, 1), (1, 5))] == [
        "host-0/nic-5>leaf-5",
        "leaf-5>host-1/nic-5",
    ]
    bare = replace(h100, nvlink=None)
    assert len(links_of(bare, (0, 1), (1, 5))) == 4


@given(st.data())
def test_a_path_goes_from_node_to_node_and_numbers_match_names(data) -> None:
    preset = data.draw(st.sampled_from(["dgx-h100", "ethernet-host"]))
    cluster = load_cluster(preset, num_hosts=64)
    ends = data.draw(st.tuples(*[st.integers(0, 63), st.integers(0, cluster.gpus_per_host - 1)] * 2))
    links = links_of(cluster, ends[:2], ends[2:], data.draw(st.integers(0, 10**6)))
    names = [link_name(cluster, int(i)) for i in links]
    for before, after in pairwise(names):
        assert before.split(">")[1] == after.split(">")[0]
    for number, name in zip(links, names, strict=True):
        src, dst = name.split(">")
        assert cluster.has_node(src)
        assert cluster.has_link(src, dst)
        assert link_number(cluster, src, dst) == number < len(link_capacities(cluster))


def test_many_paths_are_the_single_paths_joined(h100) -> None:
    rng = np.random.default_rng(3)
    hosts, locals_ = rng.integers(0, 64, (2, 50)), rng.integers(0, 8, (2, 50))
    many = links_of_many(h100, hosts[0], locals_[0], hosts[1], locals_[1])
    for i in range(50):
        one = links_of(h100, (hosts[0, i], locals_[0, i]), (hosts[1, i], locals_[1, i]))
        assert many.links[many.start[i] : many.start[i + 1]].tolist() == one.tolist()


def test_spines_share_the_flows_of_one_pair_evenly(h100) -> None:
    same = np.zeros(16_000, np.int64)
    paths = links_of_many(h100, same, same, same + 40, same, np.arange(16_000))
    used = np.bincount(paths.links[1::4] % h100.fabric.num_spines)
    assert used.min() > 850
    assert used.max() < 1150


def test_oversubscription_thins_uplinks_and_a_named_link_gets_its_own_rate(h100) -> None:
    thin = replace(h100, fabric=replace(h100.fabric, oversubscription=4))
    uplink = link_number(h100, "leaf-0", "spine-0")
    assert link_capacities(thin)[uplink] == pytest.approx(link_capacities(h100)[uplink] / 4)
    assert link_capacities(h100)[0] == pytest.approx(48.0)  # 400 Gb/s as NCCL counts it
    slow = replace(h100, links=(Link(src="leaf-0", dst="spine-0", gbps=10),))
    changed = np.flatnonzero(link_capacities(slow) != link_capacities(h100))
    assert changed.tolist() == [uplink]
    assert link_capacities(slow)[uplink] == pytest.approx(1.2)
