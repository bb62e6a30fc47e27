"""What records of long timeouts, of two switches and of sampled packets are taken for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from prism.observe.traffic.preparation import prepare_traffic
from prism.observe.traffic.records import find_quantum

SECOND = 1_000_000_000


def make_flows(rows: list[tuple[str, str, int, int, int, int]], **more: Sequence[object]) -> pl.DataFrame:
    """Flows of src, dst, port, bytes, start and end in seconds."""
    flows = pl.DataFrame(rows, schema=["src", "dst", "src_port", "bytes", "start_ns", "end_ns"], orient="row")
    return flows.with_columns(pl.col("start_ns", "end_ns") * SECOND, **{name: pl.Series(v) for name, v in more.items()})


def test_two_channels_of_one_volume_in_records_of_a_minute_are_two_connections() -> None:
    """Each has two records of the same times and bytes as the other: none of them repeats another."""
    minutes = [("a", "b", port, 5_000_000, 60 * m, 60 * m + 60) for port in (1, 2) for m in range(2)]
    traffic = prepare_traffic(make_flows(minutes))
    assert traffic.connected
    assert traffic.pairs["bytes"].to_list() == [20_000_000]


def test_ports_that_are_new_for_every_record_tell_no_connections_apart() -> None:
    rows = [("a", "b", 1000 + k, 5_000_000 + k, k, k + 1) for k in range(30)]
    assert not prepare_traffic(make_flows(rows)).connected


def export_at_both_ends(share: float) -> pl.DataFrame:
    """Ten flows of each of two senders; the second one's switch exports a share of what the first sends, too."""
    rng = np.random.default_rng(1)
    rows, exporter = [], []
    for k in range(10):
        for src, dst, by in (("a", "b", "leaf-a"), ("b", "a", "leaf-b"), ("a", "b", "leaf-b")):
            scale = share if (src, by) == ("a", "leaf-b") else 1.0
            rows.append((src, dst, 7, int(scale * rng.normal(1e6, 3e4)), k, k + 1))
            exporter.append(by)
    return make_flows(rows, exporter=exporter)


def test_what_a_second_switch_sampled_of_the_same_connection_counts_once() -> None:
    traffic = prepare_traffic(export_at_both_ends(1.0))
    assert traffic.pairs["num"].to_list() == [10, 10]
    assert any("by a second switch" in note for note in traffic.notes)


def test_traffic_that_moved_to_another_switch_halfway_all_counts() -> None:
    """A leaf is restarted: its hosts, which have two, send through the other one from then on."""
    rows = [
        (src, dst, 7, 1_000_000 + k, 10 * k, 10 * k + 5) for k in range(20) for src, dst in (("a", "b"), ("b", "a"))
    ]
    flows = make_flows(rows, exporter=["leaf-1" if row[4] < 110 else "leaf-2" for row in rows])
    assert prepare_traffic(flows).pairs["num"].to_list() == [20, 20]


def test_connections_of_a_pair_that_carry_the_same_in_the_same_seconds_are_not_repeated() -> None:
    """Ten connections of a flow log: sums over a minute of whole seconds, equal but for their ports."""
    rows = [("a", "b", 40_000 + k, 80_000_000, 0, 60) for k in range(10)]
    traffic = prepare_traffic(make_flows(rows))
    assert traffic.pairs["bytes"].to_list() == [800_000_000]
    assert not any("repeated" in note for note in traffic.notes)
    assert prepare_traffic(make_flows([*rows, rows[0]])).pairs["bytes"].to_list() == [800_000_000]


def test_without_ports_equal_sums_over_whole_seconds_count_and_are_noted() -> None:
    flows = make_flows([("a", "b", 0, 80_000_000, 0, 60)] * 3).drop("src_port")
    traffic = prepare_traffic(flows)
    assert traffic.pairs["bytes"].to_list() == [240_000_000]
    assert any("without ports" in note for note in traffic.notes)


def test_flows_of_one_switch_each_all_count() -> None:
    flows = export_at_both_ends(1.0)
    assert prepare_traffic(flows.filter(pl.col("exporter") == "leaf-b")).pairs["num"].to_list() == [10, 10]


@pytest.mark.parametrize("rate", [32, 1000])
def test_packets_that_come_in_multiples_were_sampled(rate: int) -> None:
    seen = np.random.default_rng(2).poisson(40, 200) + 1
    rows = [("a", "b", 7, int(s) * rate * 4166 - 11, k, k + 1) for k, s in enumerate(seen)]
    flows = make_flows(rows, packets=[int(s) * rate for s in seen])
    assert prepare_traffic(flows).sample_bytes == pytest.approx(rate * 4166, rel=1e-3)


def test_bytes_of_sampled_packets_that_are_not_multiplied_by_the_rate_are_sums_of_packets() -> None:
    """Two sizes of messages, of 300 and 40 sampled packets each; headers make some packets a byte longer."""
    seen = np.random.default_rng(2).poisson([300, 40], (200, 2)) + 1
    rows = [
        ("a", "b", 7, 4094 * int(num) + k % 3, 2 * k + i, 2 * k + i + 1)
        for k, both in enumerate(seen)
        for i, num in enumerate(both)
    ]
    traffic = prepare_traffic(make_flows(rows, sampling_rate=[100] * len(rows)))
    assert traffic.sample_bytes == pytest.approx(4094, abs=3)
    assert traffic.streams.height == 2
    assert prepare_traffic(make_flows(rows, sampling_rate=[1] * len(rows))).sample_bytes == 0


def test_times_in_seconds_are_so_though_messages_of_one_record_are_placed_between() -> None:
    """Every third record holds three messages that an idle timeout merged."""
    rows = [
        (f"h{h}", f"h{(h + 1) % 4}", 7, 4_000_000 if k % 3 else 12_000_000, 20 * k, 20 * k + (0 if k % 3 else 5))
        for h in range(4)
        for k in range(60)
    ]
    traffic = prepare_traffic(make_flows(rows))
    assert any("were split" in note for note in traffic.notes)
    assert traffic.resolution_ns == SECOND


def test_packets_that_were_all_counted_were_not_sampled() -> None:
    seen = np.random.default_rng(2).poisson(4000, 200) + 1
    rows = [("a", "b", 7, int(s) * 4166 - 11, k, k + 1) for k, s in enumerate(seen)]
    assert prepare_traffic(make_flows(rows, packets=seen.tolist())).sample_bytes == 0.0


@pytest.mark.parametrize(("size", "joined"), [(524_288, True), (5_242_880, False)], ids=["writes", "buckets"])
def test_writes_that_follow_each_other_at_once_are_one_transfer(size: int, joined: bool) -> None:
    """Five transfers of eight writes each, a second apart; transfers of many megabytes are never writes."""
    begin = [SECOND * k + 100_000 * part for k in range(5) for part in range(8)]
    flows = pl.DataFrame({"start_ns": begin, "src": "a", "dst": "b", "bytes": size, "src_port": 7})
    traffic = prepare_traffic(flows.with_columns(end_ns=pl.col("start_ns") + 97_000))
    assert any("40 writes" in note and "5 transfers" in note for note in traffic.notes) == joined
    assert traffic.pairs["bytes"].to_list() == [40 * size]


@pytest.mark.parametrize("rate", [1, 200, 5_000])
def test_sums_of_sampled_packets_are_the_same_whether_a_reader_multiplied_them(rate: int) -> None:
    rng = np.random.default_rng(0)
    packets, headers = rng.poisson(40, 4_000) + 1, rng.integers(0, 3, 4_000)
    sums = (packets * 4_146 + 2 * headers).astype(np.int64)
    assert find_quantum(sums * rate, max(rate, 200)) == pytest.approx(4_146 * rate, rel=0.01)
