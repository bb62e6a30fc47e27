"""NCCL's model: what its search finds, what it chooses, and the laws that times obey."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.simulate.cluster_file import load_cluster
from prism.simulate.nccl.candidates import find_candidates
from prism.simulate.nccl.channels import find_graphs
from prism.simulate.nccl.choice import evaluate
from prism.simulate.placement import spread_evenly
from prism.simulate.transfer_model import TRANSFER_KINDS, evaluate_transfer

MIB = 2**20
PRESETS = ("dgx-a100", "dgx-h100", "dgx-b200", "ethernet-host")


def group(preset: str, ranks: int, hosts: int):
    cluster = load_cluster(preset)
    return spread_evenly(ranks, hosts, cluster), cluster


def candidate(kind: str, name: str, preset: str, ranks: int, hosts: int):
    return next(c for c in find_candidates(kind, *group(preset, ranks, hosts)) if c.name == name)


@pytest.mark.parametrize(
    ("preset", "ranks", "hosts", "channels", "total"),
    [
        ("dgx-h100", 8, 1, 24, 360.0),  # public logs of 8x H100: 24 coll channels
        ("dgx-h100", 16, 2, 16, 360.0),  # and of two nodes: 16
        ("dgx-a100", 8, 1, 24, 240.0),
        ("dgx-a100", 16, 2, 16, 192.0),  # 8 NICs of 24 GB/s
        ("dgx-b200", 32, 4, 16, 384.0),
    ],
)
def test_rings_have_the_channels_that_nccl_logs(preset, ranks, hosts, channels, total) -> None:
    graphs = find_graphs(*group(preset, ranks, hosts))
    assert graphs.coll_channels == channels
    assert graphs.ring.channels * graphs.ring.inter == pytest.approx(total)


def test_nvls_on_eight_h100_reaches_476_gigabytes_per_second() -> None:
    # 8 heads x 40 GB/s x 0.85 x 7/8 x 2; NVIDIA calls 476 the expected bus bandwidth (nccl-tests issue 290).
    found = candidate("all_reduce", "nvls/Simple", "dgx-h100", 8, 1)
    assert found.gb_per_s * 14 / 8 == pytest.approx(476.0)
    assert found.latency_us == 25.0


def test_without_nvls_eight_h200_lose_what_was_measured() -> None:
    h200 = load_cluster("dgx-h200")
    plain = replace(h200, nvlink=replace(h200.nvlink, sharp=False))
    time = evaluate("all_reduce", np.array([16.0 * 2**30]), spread_evenly(8, 1, plain), plain).duration_us[0]
    assert 1.75 * 16 * 2**30 / time / 1000 == pytest.approx(367.61, rel=0.03)  # stas00/ml-engineering, NVLS off


def test_eight_h200_switch_from_ring_ll_to_nvls_between_one_and_two_mebibytes() -> None:
    # As NCCL's own log says on such a node (stas00/ml-engineering, all-reduce-8xH200).
    costs = evaluate("all_reduce", np.array([32 * 1024, MIB, 2 * MIB, 2**34], float), *group("dgx-h200", 8, 1))
    assert costs.algorithms.tolist() == ["ring/LL", "ring/LL", "nvls/Simple", "nvls/Simple"]


def test_the_score_is_latency_plus_bytes_over_bandwidth() -> None:
    ring = candidate("all_reduce", "ring/LL", "dgx-h100", 8, 1)
    assert ring.latency_us == pytest.approx(6.6 + 14 * 0.6)
    assert ring.gb_per_s == pytest.approx(141 * 8 / 14)
    costs = evaluate("all_reduce", np.array([256 * 1024.0]), *group("dgx-h100", 8, 1))
    assert costs.score_us[0] == pytest.approx(15.0 + 256 * 1024 / (141 * 8 / 14) / 1000)


def test_a_ring_over_hosts_pays_the_network_once_per_boundary() -> None:
    simple = candidate("all_gather", "ring/Simple", "dgx-h100", 16, 2)
    assert simple.latency_us == pytest.approx(8.4 + 14 * 3.4 + 1 * 14.0)
    amd = candidate("all_gather", "ring/LL", "dgx-a100", 16, 2)
    assert amd.latency_us == pytest.approx(6.6 + 14 * 2.0 + 1 * 2.7)  # AMD hosts need 2 us to post a message


def test_many_hosts_use_trees_for_small_messages() -> None:
    costs = evaluate("all_reduce", np.array([1024.0, 4 * MIB]), *group("dgx-h100", 256, 32))
    assert costs.algorithms[0] == "tree/LL"
    assert "ring" not in costs.algorithms[1]


def test_pat_is_for_one_gpu_per_host_only() -> None:
    names = {c.name for c in find_candidates("all_gather", *group("dgx-h100", 16, 16))}
    assert "pat/Simple" in names
    assert not any(c.name == "pat/Simple" for c in find_candidates("all_gather", *group("dgx-h100", 16, 2)))
    assert not any(c.algorithm == "pat" for c in find_candidates("all_reduce", *group("dgx-h100", 16, 16)))


def test_ll128_needs_nvlink_and_nvls_needs_a_switch_that_reduces() -> None:
    pcie = replace(load_cluster("dgx-h100"), nvlink=None)
    found = find_candidates("all_reduce", spread_evenly(8, 1, pcie), pcie)
    assert {c.name for c in found} == {"tree/LL", "tree/Simple", "ring/LL", "ring/Simple"}
    assert not any(c.algorithm.startswith("nvls") for c in find_candidates("all_reduce", *group("dgx-a100", 8, 1)))


def test_a_slower_network_card_slows_what_crosses_hosts_and_nothing_else() -> None:
    fast = load_cluster("dgx-h100")
    slow = replace(fast, nics=replace(fast.nics, gbps=100))
    sizes = np.array([2.0**30])
    for hosts, changes in ((1, False), (2, True), (4, True)):
        times = [
            evaluate("all_reduce", sizes, spread_evenly(8 * hosts, hosts, c), c).duration_us[0] for c in (fast, slow)
        ]
        assert (times[1] > 2 * times[0]) == changes


sizes_ = st.integers(0, 2**34)
kinds_ = st.sampled_from(TRANSFER_KINDS)
spreads_ = st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (8, 4), (16, 16), (64, 16), (128, 32)])


@given(kinds_, st.sampled_from(PRESETS), spreads_, sizes_)
def test_twice_the_bytes_never_take_less_time_with_one_algorithm(kind, preset, spread, size) -> None:
    # Across algorithms they may: NCCL chooses by a score that leaves out filling NVLS's pipeline.
    if kind in ("send", "recv"):
        spread = (2, min(spread[1], 2))
    costs = evaluate_transfer(kind, np.array([size, 2 * size], float), *group(preset, *spread))
    if costs.choice[0] != costs.choice[1]:
        return
    assert costs.duration_us[0] <= costs.duration_us[1] * (1 + 1e-12)
    assert costs.shape_us[0] <= costs.shape_us[1] * (1 + 1e-12)


@given(kinds_, st.sampled_from(PRESETS), spreads_, sizes_)
def test_a_transfer_takes_at_least_what_nccl_scores_it(kind, preset, spread, size) -> None:
    costs = evaluate_transfer(kind, np.array([size], float), *group(preset, *spread))
    assert costs.duration_us[0] >= costs.score_us[0] - 1e-9
    assert np.isfinite(costs.duration_us[0])
    assert (costs.duration_us[0] > 0) == (spread[0] > 1)


@given(st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "broadcast")), st.integers(20, 34))
def test_no_ring_beats_the_links_it_runs_on(kind, log_size) -> None:
    size = 2.0**log_size
    for preset, ranks, hosts in (("dgx-h100", 8, 1), ("dgx-h100", 32, 4), ("dgx-a100", 16, 2)):
        placement, cluster = group(preset, ranks, hosts)
        costs = evaluate(kind, np.array([size]), placement, cluster)
        if not costs.algorithms[0].startswith("ring"):
            continue
        passes = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0}.get(kind, (ranks - 1) / ranks)
        limit = cluster.nvlink.gb_per_s if hosts == 1 else 8 * cluster.nics.gbps / 8
        assert costs.duration_us[0] >= passes * size / (1000 * limit)
