"""IPFIX: what an exporter sends comes out as flows, and what is wrong with it is counted."""

from __future__ import annotations

import struct

import pytest
from export_bytes import BASIC, a_set, basic_record, ipfix, ntp, options_template_set, packed, template_set
from hypothesis import given
from hypothesis import strategies as st

from prism.collect import collector as collecting
from prism.collect.collector import Collector
from prism.collect.export_session import MAX_TEMPLATE_FIELDS, MAX_WAITING_BYTES
from prism.collect.record_sets import NO_BYTES, NO_START
from prism.records import FLOWS

SENDER = ("192.0.2.1", 4739)
START_MS = 1_700_000_000_000


def collect(*datagrams: bytes, sender: tuple[str, int] = SENDER) -> tuple[Collector, list[dict]]:
    collector = Collector()
    for datagram in datagrams:
        collector.feed(datagram, sender, 0)
    flows = collector.flush()
    assert FLOWS.conform(flows).columns == flows.columns
    return collector, flows.to_dicts()


def data(*sizes: int) -> bytes:
    return a_set(256, b"".join(basic_record("10.0.0.1", "10.0.0.2", s, START_MS, START_MS + 5) for s in sizes))


def test_records_become_flows():
    collector, flows = collect(ipfix(template_set({256: BASIC}), data(1000, 2000)))
    assert [f["bytes"] for f in flows] == [1000, 2000]
    first = flows[0]
    assert (first["src"], first["dst"], first["src_port"], first["dst_port"]) == ("10.0.0.1", "10.0.0.2", 49152, 4791)
    assert (first["start_ns"], first["end_ns"]) == (START_MS * 10**6, (START_MS + 5) * 10**6)
    assert (first["packets"], first["sampling_rate"], first["exporter"]) == (1, 1, "192.0.2.1")
    assert collector.counts.flows == 2 and collector.counts.num_malformed == 0 and collector.counts.num_dropped == 0


def test_data_before_its_template_waits_for_it():
    collector, flows = collect(ipfix(data(1)), ipfix(template_set({256: BASIC}), sequence=1))
    assert [f["bytes"] for f in flows] == [1] and collector.counts.waiting == 1


def test_data_whose_template_never_comes_is_bounded_and_counted():
    collector = Collector()
    for i in range(2000):
        collector.feed(ipfix(data(1), sequence=i), SENDER, 0)
    held = sum(s._waiting_bytes for s in collector._sessions.values())
    assert held <= MAX_WAITING_BYTES
    dropped = collector.counts.dropped["data sets whose template never came"]
    assert collector.counts.waiting == 2000 and dropped > 0
    collector.feed(ipfix(template_set({256: BASIC}), sequence=2000), SENDER, 0)
    assert collector.flush().height == 2000 - dropped


def test_a_template_that_changes_mid_stream_applies_from_there_on():
    smaller = ((8, 4), (12, 4), (1, 4), (152, 8))
    later = a_set(256, packed("10.0.0.3") + packed("10.0.0.4") + struct.pack("!IQ", 77, START_MS))
    collector, flows = collect(
        ipfix(template_set({256: BASIC}), data(1000)),
        ipfix(template_set({256: smaller}), later, sequence=1),
    )
    assert {(f["src"], f["bytes"]) for f in flows} == {("10.0.0.1", 1000), ("10.0.0.3", 77)}
    assert collector.counts.events["templates changed"] == 1
    assert next(f for f in flows if f["src"] == "10.0.0.3")["end_ns"] is None


def test_a_refreshed_template_changes_nothing():
    collector, flows = collect(*(ipfix(template_set({256: BASIC}), data(5), sequence=i) for i in range(3)))
    assert len(flows) == 3 and not collector.counts.events


def test_a_withdrawn_template_is_forgotten():
    withdrawal = a_set(2, struct.pack("!HH", 256, 0))
    collector, flows = collect(ipfix(template_set({256: BASIC})), ipfix(withdrawal), ipfix(data(1)))
    assert flows == [] and collector.counts.waiting == 1 and collector.counts.events["templates withdrawn"] == 1


def test_templates_of_two_domains_and_two_exporters_are_apart():
    other = ((8, 4), (12, 4), (1, 4), (152, 8))
    record = a_set(256, packed("10.9.0.1") + packed("10.9.0.2") + struct.pack("!IQ", 9, START_MS))
    collector = Collector()
    collector.feed(ipfix(template_set({256: BASIC}), domain=1), SENDER, 0)
    collector.feed(ipfix(template_set({256: other}), domain=2), SENDER, 0)
    collector.feed(ipfix(template_set({256: other}), domain=1), ("192.0.2.2", 1), 0)
    collector.feed(ipfix(data(1), domain=1), SENDER, 0)
    collector.feed(ipfix(record, domain=2), SENDER, 0)
    collector.feed(ipfix(record, domain=1), ("192.0.2.2", 1), 0)
    assert sorted(collector.flush()["bytes"].to_list()) == [1, 9, 9] and collector.num_exporters == 3


def test_sequence_gaps_are_counted_in_records():
    collector, _ = collect(
        ipfix(template_set({256: BASIC}), data(1, 2), sequence=0),
        ipfix(data(3), sequence=2),
        ipfix(data(4), sequence=10),  # 7 records went missing
        ipfix(data(9), sequence=4),  # late, not lost
        ipfix(data(5), sequence=11),
    )
    assert collector.counts.lost == 7
    assert collector.counts.events["sequence gaps"] == 1 and collector.counts.events["messages out of order"] == 1


def test_the_sequence_wraps_without_a_gap():
    collector, _ = collect(ipfix(template_set({256: BASIC}), data(1), sequence=2**32 - 1), ipfix(data(1), sequence=0))
    assert collector.counts.lost == 0


@pytest.mark.parametrize(
    ("fields", "values", "rate"),
    [
        (((305, 4), (306, 4)), struct.pack("!II", 1, 99), 100),
        (((34, 4),), struct.pack("!I", 512), 512),
        (((309, 4), (310, 4)), struct.pack("!II", 2, 64), 32),
        (((311, 8),), struct.pack("!d", 0.01), 100),
    ],
)
def test_sampling_announced_in_options_scales_bytes_and_packets(fields, values, rate):
    options = options_template_set(300, [(302, 8)], fields)
    announced = a_set(300, struct.pack("!Q", 7) + values)
    _, flows = collect(ipfix(template_set({256: BASIC}), options, announced, data(1000)))
    assert (flows[0]["bytes"], flows[0]["packets"], flows[0]["sampling_rate"]) == (1000 * rate, rate, rate)


def test_records_use_the_rate_of_the_sampler_they_name():
    fields = (*BASIC, (302, 2))
    options = options_template_set(300, [(302, 2)], [(34, 4)])
    announced = a_set(300, struct.pack("!HIHI", 1, 10, 2, 1000))
    records = b"".join(
        basic_record("10.0.0.1", "10.0.0.2", 5, START_MS, START_MS) + struct.pack("!H", s) for s in (1, 2)
    )
    _, flows = collect(ipfix(template_set({256: fields}), options, announced, a_set(256, records)))
    assert [f["bytes"] for f in flows] == [50, 5000]


def test_variable_length_fields_are_stepped_over():
    fields = ((8, 4), (82, 65535), (12, 4), (1, 8), (152, 8))
    names = [b"eth0", b"", b"x" * 300]
    records = b"".join(
        packed("10.0.0.1")
        + (bytes([len(n)]) if len(n) < 255 else b"\xff" + struct.pack("!H", len(n)))
        + n
        + packed("10.0.0.2")
        + struct.pack("!QQ", 100 + i, START_MS)
        for i, n in enumerate(names)
    )
    collector, flows = collect(
        ipfix(template_set({256: fields}), a_set(256, records, pad=False)),
        ipfix(a_set(256, records, pad=False), sequence=3),
    )
    assert [f["bytes"] for f in flows] == [100, 101, 102] * 2
    assert {f["dst"] for f in flows} == {"10.0.0.2"} and collector.counts.lost == 0


def test_ipv6_enterprise_and_short_fields_are_read():
    fields = ((27, 16), (99, 4, 9), (28, 16), (1, 3), (7, 2), (156, 8), (157, 8))
    when = 1_700_000_000_123_456_789
    record = (
        packed("2001:db8::1") + b"junk" + packed("2001:db8::2") + (123456).to_bytes(3, "big") + struct.pack("!H", 5)
    )
    record += struct.pack("!QQ", ntp(when), when + 1000)  # NTP as the RFC asks, and a plain count as some send
    _, flows = collect(ipfix(template_set({256: fields}), a_set(256, record)))
    flow = flows[0]
    assert (flow["src"], flow["dst"], flow["bytes"]) == ("2001:db8::1", "2001:db8::2", 123456)
    assert abs(flow["start_ns"] - when) <= 1 and flow["end_ns"] == when + 1000


def test_a_record_with_both_families_uses_the_one_that_is_filled_in():
    fields = ((8, 4), (12, 4), (27, 16), (28, 16), (1, 8), (152, 8))
    both = [
        packed("10.0.0.1") + packed("10.0.0.2") + bytes(32) + struct.pack("!QQ", 1, START_MS),
        bytes(8) + packed("2001:db8::1") + packed("2001:db8::2") + struct.pack("!QQ", 2, START_MS),
    ]
    _, flows = collect(ipfix(template_set({256: fields}), a_set(256, b"".join(both))))
    assert [f["src"] for f in flows] == ["10.0.0.1", "2001:db8::1"]


def test_times_since_the_exporter_started_use_the_start_it_announces():
    fields = ((8, 4), (12, 4), (1, 8), (22, 4), (21, 4))
    options = options_template_set(300, [(149, 4)], [(160, 8)])
    record = packed("10.0.0.1") + packed("10.0.0.2") + struct.pack("!QII", 1, 5000, 6000)
    told = a_set(300, struct.pack("!IQ", 1, START_MS))
    collector, flows = collect(
        ipfix(template_set({256: fields}), a_set(256, record)), ipfix(options, told, a_set(256, record), sequence=1)
    )
    assert [f["start_ns"] for f in flows][1:] == [(START_MS + 5000) * 10**6]
    assert collector.counts.events[NO_START] == 1, "the first came before the start was told"
    assert flows[0]["end_ns"] - flows[0]["start_ns"] == 10**9


def test_durations_and_a_single_moment_are_enough():
    fields = ((8, 4), (12, 4), (1, 8), (153, 8), (161, 4))
    record = packed("10.0.0.1") + packed("10.0.0.2") + struct.pack("!QQI", 1, START_MS, 250)
    _, flows = collect(ipfix(template_set({256: fields}), a_set(256, record)))
    assert flows[0]["end_ns"] - flows[0]["start_ns"] == 250 * 10**6
    _, flows = collect(
        ipfix(
            template_set({256: ((8, 4), (12, 4), (1, 8))}),
            a_set(256, packed("10.0.0.1") + packed("10.0.0.2") + struct.pack("!Q", 1)),
        )
    )
    assert flows[0]["start_ns"] == 1_700_000_000 * 10**9 and flows[0]["end_ns"] is None


def test_a_two_way_record_is_two_flows():
    fields = (*BASIC, (1, 8, 29305), (2, 8, 29305))
    record = basic_record("10.0.0.1", "10.0.0.2", 10, START_MS, START_MS) + struct.pack("!QQ", 700, 3)
    _, flows = collect(ipfix(template_set({256: fields}), a_set(256, record)))
    assert [(f["src"], f["bytes"]) for f in flows] == [("10.0.0.1", 10), ("10.0.0.2", 700)]
    assert flows[1]["src_port"] == 4791


@pytest.mark.parametrize(
    ("datagram", "fault"),
    [
        (b"", "version not supported"),
        (b"\x00\x63" + bytes(30), "version not supported"),
        (b"\x00\x0a\x00\x10", "message shorter than its header"),
        (ipfix(data(1))[:-3], "message length differs from its header"),
        (ipfix(struct.pack("!HH", 256, 400) + bytes(20)), "set length overruns its message"),
        (ipfix(struct.pack("!HH", 256, 3) + bytes(20)), "set length overruns its message"),
        (ipfix(a_set(2, struct.pack("!HHHH", 256, 9, 8, 4))), "template cut short"),
        (ipfix(a_set(2, struct.pack("!HHHH", 20, 1, 8, 4))), "template id below 256"),
        (ipfix(a_set(2, struct.pack("!HHHH", 256, 1, 8, 0))), "template of empty records"),
        (ipfix(a_set(2, struct.pack("!HH", 256, 60000))), "template of too many fields"),
        (ipfix(a_set(7, bytes(8))), "set id not in use"),
    ],
)
def test_what_is_malformed_is_counted_and_the_next_message_still_read(datagram, fault):
    collector, flows = collect(datagram, ipfix(template_set({256: BASIC}), data(4)))
    assert collector.counts.malformed[fault] == 1
    assert [f["bytes"] for f in flows] == [4]


def test_bytes_behind_a_message_are_left_alone():
    collector, flows = collect(ipfix(template_set({256: BASIC}), data(4)) + b"tail")
    assert len(flows) == 1 and collector.counts.events["messages with bytes behind them"] == 1


def test_absurd_sizes_and_dates_are_left_out_and_counted():
    bad = [
        basic_record("10.0.0.1", "10.0.0.2", 2**63, START_MS, START_MS),
        basic_record("10.0.0.1", "10.0.0.2", 1, 2**63, START_MS),
        basic_record("10.0.0.1", "10.0.0.2", 1, START_MS, START_MS - 10),
    ]
    collector, flows = collect(ipfix(template_set({256: BASIC}), a_set(256, b"".join(bad))))
    assert len(flows) == 1 and flows[0]["end_ns"] == flows[0]["start_ns"]
    assert collector.counts.dropped == {"records of absurd size": 1, "records of unknown time": 1}


def test_records_without_addresses_are_counted():
    collector, flows = collect(ipfix(template_set({256: ((1, 8), (152, 8))}), a_set(256, bytes(16))))
    assert flows == [] and collector.counts.dropped["records without addresses"] == 1


def test_a_flood_of_made_up_exporters_cannot_push_out_the_real_one(monkeypatch):
    monkeypatch.setattr(collecting, "MAX_SESSIONS", 50)
    collector = Collector()
    collector.feed(ipfix(template_set({256: BASIC})), SENDER, 0)
    for i in range(500):
        collector.feed(ipfix(template_set({256: BASIC}), data(1)), (f"198.51.100.{i % 250}", i), 1000 + i)
    collector.feed(ipfix(data(42)), SENDER, 2000)
    assert collector.num_exporters == 50
    assert collector.counts.dropped["messages of exporters beyond the limit"] == 451
    assert 42 in collector.flush()["bytes"].to_list()
    collector.feed(ipfix(template_set({256: BASIC})), ("203.0.113.1", 1), 100 * 10**9)
    assert collector.counts.events["exporters forgotten"] == 1


def test_a_flood_of_templates_is_bounded():
    collector = Collector()
    for i in range(256, 2000):
        collector.feed(ipfix(template_set({i: [(1, 4)] * 100})), SENDER, 0)
    session = next(iter(collector._sessions.values()))
    assert session._num_fields <= MAX_TEMPLATE_FIELDS
    assert collector.counts.dropped["templates beyond the limit of an exporter"] > 1000


def test_what_is_not_yet_decoded_is_bounded(monkeypatch):
    monkeypatch.setattr(collecting, "_MAX_PENDING_BYTES", 1000)
    collector = Collector()
    collector.feed(ipfix(template_set({256: BASIC})), SENDER, 0)
    for i in range(100):
        collector.feed(ipfix(data(1), sequence=i), SENDER, 0)
    assert collector.pending_bytes <= 1000
    assert collector.counts.dropped["data sets beyond the memory limit"] == 100 - collector.flush().height


fields = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 7, 8, 11, 12, 21, 22, 27, 28, 34, 82, 150, 152, 153, 154, 156, 160, 161, 302, 305, 311]),
        st.sampled_from([0, 1, 2, 3, 4, 7, 8, 16, 65535]),
    ),
    min_size=1,
    max_size=8,
)


@given(fields, st.binary(max_size=300), st.booleans())
def test_any_template_with_any_data_is_read_or_counted(layout, body, is_options):
    first = options_template_set(256, layout[:1], layout[1:]) if is_options else template_set({256: layout})
    collector, _ = collect(ipfix(first), ipfix(a_set(256, body)))
    assert collector.counts.received == 2


@given(st.binary(max_size=600))
def test_noise_never_crashes(noise):
    collector, _ = collect(noise, b"\x00\x0a" + noise, b"\x00\x09" + noise, b"\x00\x05" + noise)
    assert collector.counts.received == 4


@given(st.data())
def test_a_damaged_message_never_crashes_and_its_neighbours_are_read(drawn):
    good = ipfix(template_set({256: BASIC}), data(1, 2, 3))
    damaged = bytearray(good)
    for _ in range(drawn.draw(st.integers(1, 8))):
        damaged[drawn.draw(st.integers(0, len(good) - 1))] = drawn.draw(st.integers(0, 255))
    cut = bytes(damaged[: drawn.draw(st.integers(0, len(good)))])
    collector = Collector()
    for datagram in (bytes(damaged), cut):
        collector.feed(datagram, ("192.0.2.9", 1), 0)
    collector.feed(good, SENDER, 0)
    flows = collector.flush()
    assert flows.filter(exporter="192.0.2.1")["bytes"].to_list() == [1, 2, 3]


def test_zeros_behind_the_last_set_are_padding_and_what_overruns_costs_only_itself():
    whole = ipfix(template_set({256: BASIC}), data(4) + bytes(64))
    collector, flows = collect(whole)
    assert len(flows) == 1 and not collector.counts.malformed
    collector, flows = collect(ipfix(template_set({256: BASIC}), data(4) + b"\1\0\xff\xff"))
    assert len(flows) == 1 and collector.counts.malformed["set length overruns its message"] == 1


def test_an_exporter_that_changes_its_port_needs_no_new_templates():
    collector = Collector()
    collector.feed(ipfix(data(4)), ("10.1.1.1", 1000), 0)
    collector.feed(ipfix(template_set({256: BASIC})), ("10.1.1.1", 1001), 0)
    collector.feed(ipfix(data(4)), ("10.1.1.1", 1002), 0)
    assert collector.flush().height == 2, "of the port that waited and of a new one"
    collector.feed(ipfix(data(4), domain=8), ("10.1.1.1", 1003), 0)
    collector.feed(ipfix(data(4)), ("10.1.1.2", 1000), 0)
    assert collector.flush().height == 0
    collector.give_up_waiting()
    assert collector.counts.dropped["data sets whose template never came"] == 2


def test_a_port_that_announces_templates_of_its_own_is_an_exporter_of_its_own():
    collector = Collector()
    collector.feed(ipfix(template_set({256: BASIC})), ("10.1.1.1", 1000), 0)
    collector.feed(ipfix(template_set({300: BASIC}), data(4)), ("10.1.1.1", 1001), 0)
    assert collector.flush().height == 0 and collector.counts.waiting == 1


def test_records_without_byte_counts_are_flows_of_no_bytes_and_told():
    record = packed("10.0.0.1") + packed("10.0.0.2") + struct.pack("!Q", START_MS)
    collector, flows = collect(ipfix(template_set({256: ((8, 4), (12, 4), (152, 8))}), a_set(256, record)))
    assert [f["bytes"] for f in flows] == [0] and collector.counts.events[NO_BYTES] == 1


def test_what_a_firewall_counts_for_both_ends_is_two_flows():
    fields = ((8, 4), (12, 4), (231, 4), (232, 4), (152, 8))
    record = packed("10.0.0.1") + packed("10.0.0.2") + struct.pack("!IIQ", 700, 90, START_MS)
    _, flows = collect(ipfix(template_set({256: fields}), a_set(256, record)))
    assert sorted((f["src"], f["bytes"]) for f in flows) == [("10.0.0.1", 700), ("10.0.0.2", 90)]


def test_records_of_a_layer_two_network_are_addressed_by_mac():
    record = bytes.fromhex("c05600010000") + bytes.fromhex("000c29708609") + struct.pack("!IQ", 60, START_MS)
    _, flows = collect(ipfix(template_set({256: ((56, 6), (80, 6), (1, 4), (152, 8))}), a_set(256, record)))
    assert [(f["src"], f["dst"], f["bytes"]) for f in flows] == [("c0:56:00:01:00:00", "00:0c:29:70:86:09", 60)]


@pytest.mark.parametrize("size", [0xFFFF, 60])
def test_a_sampled_frame_is_read_as_one_of_sflow_is(size):
    ip = bytes.fromhex("4500002e00000000401100000a0000010a000002")
    frame = bytes(12) + b"\x08\0" + ip + struct.pack("!HHHH", 5000, 4000, 26, 0) + bytes(18)
    body = (bytes([len(frame)]) + frame if size == 0xFFFF else frame) + struct.pack("!Q", START_MS)
    fields = ((315, size), (323, 8))
    _, flows = collect(ipfix(template_set({256: fields}), a_set(256, body * 2)))
    assert [(f["src"], f["dst"], f["src_port"], f["dst_port"]) for f in flows] == [
        ("10.0.0.1", "10.0.0.2", 5000, 4000)
    ] * 2
    assert flows[0]["bytes"] == 18 and flows[0]["start_ns"] == START_MS * 10**6
