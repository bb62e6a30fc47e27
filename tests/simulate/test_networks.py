"""The cost model on networks of every kind, against what was measured on them."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.simulate.cluster import Nics
from prism.simulate.cluster_file import load_cluster, preset_names
from prism.simulate.costs import estimate
from prism.simulate.placement import spread_evenly

BENCHMARK = Path(__file__).parents[2] / "proving" / "benchmarks" / "simulate_coverage.py"
GIB = 2**30


@pytest.fixture(scope="module")
def board():
    spec = importlib.util.spec_from_file_location("simulate_coverage", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_board()


def seconds(cluster, ranks: int, hosts: int, size: int = 4_000_000_000) -> float:
    return estimate("all_reduce", size, spread_evenly(ranks, hosts, cluster), cluster).duration_ns / 1e9


def test_sixteen_hosts_on_omni_path_take_what_was_measured() -> None:
    """Jean Zay, 64 V100: 1.147 s measured; a NIC at line rate would take 0.33 s."""
    assert seconds(load_cluster("v100-omni-path"), 64, 16) == pytest.approx(1.147, rel=0.2)


def test_one_host_of_four_v100_takes_what_was_measured() -> None:
    assert seconds(load_cluster("v100-omni-path"), 4, 1) == pytest.approx(0.0485, rel=0.05)


def test_95_of_100_published_measurements_lie_inside_their_band(board) -> None:
    assert board.height >= 200 and board["system"].n_unique() >= 40
    assert board["inside"].mean() >= 0.95


def test_systems_that_no_constant_was_fitted_on_are_covered_too(board) -> None:
    score = board.filter(half="score")
    assert score["system"].n_unique() >= 25
    assert score["inside"].mean() >= 0.90


def test_a_wide_band_asks_for_a_calibration_and_a_narrow_one_does_not(board) -> None:
    assert board.filter(calibrate=False)["band_pct"].max() <= 100
    assert board.filter(calibrate=True)["band_pct"].min() > 100
    assert board.filter(calibrate=False)["inside"].mean() >= 0.95


def test_sound_h100_hosts_on_infiniband_are_within_a_tenth_from_a_gigabyte_up(board) -> None:
    sound = board.filter(board["system"].is_in(["h100-infiniband-a", "h100-infiniband-b", "h100-infiniband-c"]))
    assert sound.filter(sound["bytes"] >= GIB)["factor"].max() <= 1.11


@pytest.mark.parametrize("transport", ["sockets", "omni-path", "efa", "tcpx"])
def test_no_transport_is_quicker_than_rdma(transport) -> None:
    rdma = load_cluster("dgx-h100")
    other = replace(rdma, nics=replace(rdma.nics, transport=transport))
    for size in (8, 2**16, 2**22, GIB):
        assert seconds(other, 32, 4, size) > seconds(rdma, 32, 4, size)
        assert seconds(other, 8, 1, size) == seconds(rdma, 8, 1, size)


def test_what_the_cpu_moves_does_not_get_quicker_with_the_link() -> None:
    slow = replace(load_cluster("ethernet-nccl"), nccl_algo=("ring",))
    fast = replace(slow, nics=replace(slow.nics, gbps=400.0))
    assert (
        seconds(fast, 8, 2) == seconds(replace(slow, nics=replace(slow.nics, gbps=100.0)), 8, 2) < seconds(slow, 8, 2)
    )


def test_without_gpu_direct_a_large_message_takes_longer() -> None:
    direct = load_cluster("dgx-v100")
    bounced = replace(direct, nics=replace(direct.nics, gpu_direct=False))
    assert seconds(bounced, 32, 4) > 1.2 * seconds(direct, 32, 4)


@pytest.mark.parametrize(("version", "algorithm"), [("2.16", "ring"), ("2.17", "nvls"), ("2.30", "nvls")])
def test_nvls_in_a_host_came_with_version_2_17(version, algorithm) -> None:
    cluster = replace(load_cluster("dgx-h100"), nccl=version)
    assert estimate("all_reduce", GIB, spread_evenly(8, 1, cluster), cluster).algorithm == algorithm


def test_nvls_trees_came_with_2_18_and_pat_with_2_23() -> None:
    cluster = load_cluster("dgx-h100")
    chosen = {
        version: estimate("all_reduce", GIB, spread_evenly(16, 2, c), c).algorithm
        for version in ("2.17", "2.18")
        for c in [replace(cluster, nccl=version)]
    }
    assert chosen["2.17"] != "nvls_tree" and chosen["2.18"] == "nvls_tree"
    one_each = {
        version: estimate("all_gather", 2**16, spread_evenly(64, 64, c), c).algorithm
        for version in ("2.22", "2.23")
        for c in [replace(cluster, nccl=version)]
    }
    assert one_each == {"2.22": "ring", "2.23": "pat"}


def test_nccl_algo_limits_the_choice_and_falls_back_to_rings() -> None:
    cluster = replace(load_cluster("dgx-h100"), nccl_algo=("tree",))
    assert estimate("all_reduce", GIB, spread_evenly(16, 2, cluster), cluster).algorithm == "tree"
    assert estimate("all_gather", GIB, spread_evenly(16, 2, cluster), cluster).algorithm == "ring"


@given(
    preset=st.sampled_from(preset_names()),
    hosts=st.integers(1, 64),
    exponent=st.integers(3, 34),
    version=st.sampled_from(["2.4", "2.7.8", "2.11", "2.12", "2.17", "2.18", "2.27", "2.30"]),
)
def test_every_preset_prices_every_size_on_every_version(preset, hosts, exponent, version) -> None:
    cluster = replace(load_cluster(preset), nccl=version)
    placement = spread_evenly(hosts * cluster.gpus_per_host, hosts, cluster)
    for kind in ("all_reduce", "all_gather", "all_to_all", "broadcast"):
        found = estimate(kind, 2**exponent, placement, cluster)
        assert found.duration_ns > 0 and found.error_band_pct > 0


def test_nics_default_to_rdma_with_gpu_direct() -> None:
    assert (Nics().transport, Nics().gpu_direct) == ("rdma", True)
