"""NetFlow 9 and 5: clocks that count from the exporter's start, sampling, sequence numbers."""

from __future__ import annotations

import struct

from export_bytes import a_set, packed, template_set, v5, v5_record, v9, v9_options_template_set
from hypothesis import given
from hypothesis import strategies as st

from prism.collect.collector import Collector

SENDER = ("192.0.2.1", 2055)
FIELDS = ((8, 4), (12, 4), (1, 4), (2, 4), (22, 4), (21, 4), (7, 2), (11, 2))


def record(size: int, first_ms: int, last_ms: int) -> bytes:
    return packed("10.0.0.1") + packed("10.0.0.2") + struct.pack("!IIIIHH", size, 2, first_ms, last_ms, 1, 2)


def collect(*datagrams: bytes) -> tuple[Collector, list[dict]]:
    collector = Collector()
    for datagram in datagrams:
        collector.feed(datagram, SENDER, 0)
    return collector, collector.flush().to_dicts()


def test_times_count_from_the_start_of_the_exporter():
    _, flows = collect(v9(template_set({260: FIELDS}, 0), a_set(260, record(10, 3_599_000, 3_599_500))))
    assert flows[0]["start_ns"] == 1_699_999_999_000 * 10**6
    assert flows[0]["end_ns"] - flows[0]["start_ns"] == 500 * 10**6


def test_a_clock_of_whole_seconds_settles_on_the_right_start():
    """Messages are sent at .1, .9 and .4 of a second; the header shows whole seconds only."""
    datagrams = [v9(template_set({260: FIELDS}, 0), sequence=0, unix_s=1_700_000_000, uptime_ms=1_000_100)]
    for i, late_ms in enumerate((900, 1_001, 2_400), start=1):
        datagrams.append(
            v9(a_set(260, record(i, 1_000_000, 1_000_000)), sequence=i, unix_s=1_700_000_000 + late_ms // 1000,
               uptime_ms=1_000_000 + late_ms)
        )  # fmt: skip
    _, flows = collect(*datagrams)
    true_ns = 1_700_000_000 * 10**9
    assert abs(flows[-1]["start_ns"] - true_ns) <= 1_000_000


def test_uptime_wraps_after_fifty_days():
    wrapped = v9(
        template_set({260: FIELDS}, 0), a_set(260, record(1, 2**32 - 500, 200)), unix_s=1_700_000_000, uptime_ms=1000
    )
    _, flows = collect(wrapped)
    assert flows[0]["start_ns"] == 1_700_000_000 * 10**9 - 1_500 * 10**6
    assert flows[0]["end_ns"] == 1_700_000_000 * 10**9 - 800 * 10**6


def test_sampling_comes_from_an_options_template():
    options = v9_options_template_set(261, [(1, 4)], [(48, 1), (50, 4)])
    told = a_set(261, struct.pack("!IBI", 1, 3, 1000))
    _, flows = collect(v9(template_set({260: FIELDS}, 0), options, told, a_set(260, record(10, 3_599_000, 3_599_500))))
    assert (flows[0]["bytes"], flows[0]["packets"]) == (10_000, 2_000)


def test_version_9_counts_lost_datagrams():
    collector, _ = collect(v9(sequence=7), v9(sequence=8), v9(sequence=12), v9(sequence=0))
    assert collector.counts.lost == 3 and collector.counts.events["messages out of order"] == 1


def test_a_sequence_that_falls_far_back_is_a_restart():
    collector, _ = collect(v9(sequence=50_000), v9(sequence=0), v9(sequence=1))
    assert collector.counts.events["exporter restarts"] == 1 and collector.counts.lost == 0


def test_version_5_records_become_flows_with_their_sampling():
    records = [v5_record("10.0.0.1", "10.0.0.2", 1500, 1, 3_599_000, 3_600_000)] * 2
    sampling = (1 << 14) | 100
    collector, flows = collect(v5(records, sampling=sampling), v5(records[:1], sequence=5, sampling=sampling))
    assert [f["bytes"] for f in flows] == [150_000] * 3
    assert flows[0]["end_ns"] == 1_700_000_000_500_000_000
    assert (flows[0]["src_port"], flows[0]["dst_port"]) == (1000, 4791)
    assert collector.counts.lost == 3


def test_version_5_with_fewer_records_than_it_says_gives_those_it_has():
    records = [v5_record("10.0.0.1", "10.0.0.2", 1, 1, 0, 0)] * 3
    collector, flows = collect(v5(records)[:-10])
    assert len(flows) == 2 and collector.counts.malformed["version 5 records missing from their message"] == 1


@given(st.binary(max_size=400), st.sampled_from([0, 1, 2, 255, 256, 260]))
def test_any_set_of_any_id_is_read_or_counted(body, set_id):
    collector, _ = collect(v9(template_set({260: FIELDS}, 0)), v9(a_set(set_id, body), sequence=1))
    assert collector.counts.received == 2


@given(st.lists(st.binary(min_size=48, max_size=48), max_size=6), st.integers(0, 2**16 - 1), st.integers(0, 40))
def test_any_version_5_datagram_is_read(records, sampling, cut):
    datagram = v5(records, sampling=sampling)
    collector, flows = collect(datagram[: len(datagram) - cut])
    dropped = collector.counts.num_dropped
    assert len(flows) + dropped <= len(records)
