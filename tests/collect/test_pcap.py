"""Capture files: RoCE messages and bursts come out whole, whatever the container."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packet_bytes import erspan2, erspan3, ethernet, geneve, ip4, ip6, mpls, pcap, pcapng, roce, tcp, udp, vxlan

from prism.collect import assembler as assembling
from prism.collect.packet_files import read_packets
from prism.errors import BadFileError
from prism.records import FLOWS

T = 1_700_000_000 * 10**9
MS = 10**6


def write_message(
    qp: int, psn: int, size: int, start: int, mtu: int = 1024, src: str = "10.0.0.1", dst: str = "10.0.0.2"
):
    """An RDMA write of `size` bytes, one packet a microsecond."""
    num = max(1, -(-size // mtu))
    out = []
    for i in range(num):
        payload = min(mtu, size - i * mtu)
        opcode = 0x0A if num == 1 else 0x06 if i == 0 else 0x08 if i == num - 1 else 0x07
        datagram = roce(opcode, qp, (psn + i) & 0xFFFFFF, payload, size if i == 0 else None)
        out.append((start + i * 1000, ethernet(ip4(src, dst, 17, datagram))))
    return out


def send_message(qp: int, psn: int, payloads: list[int], start: int):
    opcodes = [0x04] if len(payloads) == 1 else [0x00] + [0x01] * (len(payloads) - 2) + [0x02]
    return [
        (start + i * 1000, ethernet(ip4("10.0.0.1", "10.0.0.2", 17, roce(op, qp, psn + i, size))))
        for i, (op, size) in enumerate(zip(opcodes, payloads, strict=True))
    ]


@pytest.fixture
def read(tmp_path):
    def run(content, **options):
        path = tmp_path / "t.pcap"
        path.write_bytes(content if isinstance(content, bytes) else pcap(content))
        found = read_packets(path, **options)
        assert FLOWS.conform(found.flows).columns == found.flows.columns
        return found

    return run


def test_a_write_is_one_flow_of_the_length_its_first_packet_tells(read):
    found = read(write_message(77, 100, 10_000, T))
    (flow,) = found.flows.to_dicts()
    assert (flow["src"], flow["dst"], flow["qp"], flow["bytes"]) == ("10.0.0.1", "10.0.0.2", 77, 10_000)
    assert (flow["start_ns"], flow["end_ns"], flow["packets"], flow["dst_port"]) == (T, T + 9_000, 10, 4791)


def test_messages_of_two_queue_pairs_may_interleave(read):
    packets = sorted(write_message(1, 0, 5000, T) + write_message(2, 9, 7000, T + 500))
    assert sorted(read(packets).flows["bytes"].to_list()) == [5000, 7000]


@pytest.mark.parametrize("payloads", [[100], [1024, 1024, 1024, 12], [4096, 1]])
def test_a_send_is_as_long_as_its_packets(read, payloads):
    found = read(send_message(5, 0, payloads, T))
    assert found.flows["bytes"].to_list() == [sum(payloads)]


def test_packets_missing_from_the_middle_do_not_change_the_size(read):
    packets = send_message(5, 0, [1024] * 9 + [7], T)
    found = read(packets[:3] + packets[6:])
    assert found.flows["bytes"].to_list() == [9 * 1024 + 7]
    assert found.counts.events["gaps in RoCE packet numbers"] == 1
    headers_only = write_message(6, 0, 100_000, T)
    assert read([headers_only[0], headers_only[-1]]).flows["bytes"].to_list() == [100_000]


def test_a_message_that_loses_its_end_or_beginning_is_reported_and_the_next_is_whole(read):
    first, second = write_message(1, 0, 5000, T), write_message(1, 5, 6000, T + MS)
    found = read(first[:-1] + second)
    assert found.flows["bytes"].to_list() == [5000, 6000]
    assert found.counts.events["RoCE messages without their end"] == 1
    found = read(first[2:] + second)
    assert found.flows["bytes"].to_list() == [5000 - 2 * 1024, 6000]
    assert found.counts.events["RoCE messages without their beginning"] == 1
    found = read(first[:2] + second[2:])
    assert found.flows["bytes"].to_list() == [5000, 6000 - 2 * 1024]


def test_packets_sent_again_are_counted_once(read):
    packets = write_message(1, 0xFFFFFD, 5000, T)  # the packet number wraps on the way
    again = [(when + 50_000, data) for when, data in packets[2:]]
    found = read(packets + again + write_message(1, 2, 3000, T + MS))
    assert found.flows["bytes"].to_list() == [5000, 3000]
    assert found.counts.events["RoCE packets sent again"] == 3


def test_a_queue_pair_started_anew_is_read_from_its_new_number(read):
    packets = write_message(1, 5000, 5000, T) + write_message(1, 4000, 3000, T + 3 * 10**9)
    assert read(packets).flows["bytes"].to_list() == [5000, 3000]


def test_reads_come_back_as_flows_and_control_packets_are_only_counted(read):
    def frame(datagram):
        return ethernet(ip4("10.0.0.2", "10.0.0.1", 17, datagram))

    packets = [
        (T, frame(roce(0x0C, 9, 0, 0, 3000))),
        (T + 1, frame(roce(0x0D, 9, 0, 1024, aeth=0))),
        (T + 2, frame(roce(0x0E, 9, 1, 1024))),
        (T + 3, frame(roce(0x0F, 9, 2, 952, aeth=0))),
        (T + 4, frame(roce(0x11, 9, 2, aeth=0x00))),
        (T + 5, frame(roce(0x11, 9, 2, aeth=0x60))),
        (T + 6, frame(roce(0x81, 9, 0, 16))),
    ]
    found = read(packets)
    assert found.flows["bytes"].to_list() == [3000]
    events = found.counts.events
    assert events["RoCE acknowledgements"] == 2 and events["RoCE negative acknowledgements"] == 1
    assert events["RoCE congestion notifications"] == 1 and events["RoCE reads and atomics asked for"] == 1


def segment(when, sequence, size, src="10.0.0.1", dst="10.0.0.2"):
    body = tcp(5000, 6000, bytes(size), sequence % 2**32)
    return (T + when, ethernet(ip4(src, dst, 6, body)))


@pytest.mark.parametrize("first", [7, 2**32 - 1501, 2**31 - 700], ids=["low", "wraps", "sign"])
@pytest.mark.parametrize(
    "segments",
    [
        pytest.param([(0, 1000), (1000, 500), (1000, 500), (1500, 500)], id="the last sent again"),
        pytest.param([(0, 1000), (1500, 500), (1000, 500)], id="in another order"),
        pytest.param([(0, 1000), (1500, 500), (1000, 500), (1000, 500)], id="in another order and again"),
        pytest.param([(0, 1000), (500, 1500)], id="sent again together with what follows"),
    ],
)
def test_what_tcp_sends_again_counts_once(read, segments, first):
    found = read([segment(i * MS, first + at, size) for i, (at, size) in enumerate(segments)])
    assert found.flows["bytes"].to_list() == [2000]


def test_what_tcp_sends_again_later_makes_no_flow(read):
    found = read([segment(0, 7, 1000), segment(30 * MS, 7, 1000), segment(40 * MS, 1007, 400)])
    assert found.flows.select("bytes", "start_ns").rows() == [(1000, T), (400, T + 40 * MS)]
    assert found.counts.events["TCP packets sent again"] == 1


def test_captures_without_sequence_numbers_lose_nothing(read):
    found = read([segment(i * MS, 0, 1000) for i in range(5)])
    assert found.flows["bytes"].to_list() == [5000]


def test_a_segment_that_was_lost_before_the_capture_counts_when_it_comes(read):
    found = read([segment(0, 0, 1000), segment(1 * MS, 1500, 500), segment(200 * MS, 1000, 500)])
    assert found.flows["bytes"].to_list() == [1500, 500]


def test_a_new_connection_on_the_same_ports_counts_whole(read):
    found = read([segment(0, 3 * 10**9, 1000), segment(1 * MS, 10, 700), segment(2 * MS, 710, 300)])
    assert found.flows["bytes"].to_list() == [2000]


def test_tcp_is_cut_into_bursts_at_silences(read):
    packets = [segment(0, 0, 1000), segment(1 * MS, 1000, 500), segment(2 * MS, 1500, 0), segment(20 * MS, 1500, 300)]
    packets += [segment(21 * MS, 0, 10, "10.0.0.2", "10.0.0.1")]
    found = read(packets)
    rows = found.flows.sort("start_ns").select("src", "bytes", "packets", "start_ns", "end_ns").rows()
    assert rows == [
        ("10.0.0.1", 1500, 2, T, T + 1 * MS),
        ("10.0.0.1", 300, 1, T + 20 * MS, T + 20 * MS),
        ("10.0.0.2", 10, 1, T + 21 * MS, T + 21 * MS),
    ]
    assert found.flows["qp"].null_count() == 3
    joined = read(packets, config=assembling.BurstConfig(gap_ns=100 * MS)).flows
    assert sorted(joined["bytes"].to_list()) == [10, 1800]


def test_an_endless_burst_is_cut_at_its_longest(read):
    packets = [(T + i * MS, ethernet(ip4("10.0.0.1", "10.0.0.2", 17, udp(1, 2, bytes(100))))) for i in range(100)]
    found = read(packets, config=assembling.BurstConfig(longest_ns=30 * MS))
    assert found.flows.height == 4 and found.flows["bytes"].sum() == 10_000


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("nano", [False, True])
def test_byte_orders_and_resolutions_of_pcap(read, big, nano):
    found = read(pcap(write_message(1, 0, 5000, T + 123_000), big=big, nano=nano))
    assert found.flows.select("bytes", "start_ns", "end_ns").row(0) == (5000, T + 123_000, T + 127_000)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("resolution", [6, 9, 12, 0x80 | 20, 0x80 | 34])
def test_byte_orders_and_resolutions_of_pcapng(read, big, resolution):
    begin = T if resolution in (6, 9, 0x80 | 20) else 10**15  # finer ticks since 1970 do not fit 64 bits
    found = read(pcapng(write_message(1, 0, 5000, begin + 125_000), big=big, resolution=resolution))
    size, start, end = found.flows.select("bytes", "start_ns", "end_ns").row(0)
    assert size == 5000 and abs(start - begin - 125_000) <= 1000 and abs(end - begin - 129_000) <= 1000


def test_sections_of_pcapng_may_follow_each_other(read):
    both = pcapng(write_message(1, 0, 500, T)) + pcapng(write_message(2, 0, 700, T), big=True, resolution=6)
    assert sorted(read(both).flows["bytes"].to_list()) == [500, 700]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda body: (1, ethernet(body, vlans=1)),
        lambda body: (1, ethernet(body, vlans=2)),
        lambda body: (101, body),
        lambda body: (228, body),
        lambda body: (113, bytes(14) + b"\x08\x00" + body),
        lambda body: (276, b"\x08\x00" + bytes(18) + body),
        lambda body: (0, b"\x02\0\0\0" + body),
        lambda body: (1, erspan2(ethernet(body))),
        lambda body: (1, erspan3(ethernet(body, vlans=1))),
        lambda body: (1, erspan3(ethernet(body), subheader=True)),
        lambda body: (1, vxlan(ethernet(body, vlans=1))),
        lambda body: (1, geneve(ethernet(body))),
        lambda body: (1, mpls(body)),
        lambda body: (1, ethernet(ip4("192.0.2.1", "192.0.2.2", 4, body))),
        lambda body: (1, ethernet(ip6("fd00::1", "fd00::2", 4, body), kind=0x86DD)),
    ],
    ids=[
        *("vlan", "qinq", "raw", "ipv4", "sll", "sll2", "null", "erspan2", "erspan3", "erspan3-subheader"),
        *("vxlan", "geneve", "mpls", "ip-in-ip", "ip-in-ipv6"),
    ],
)
def test_links_and_mirrors_are_unwrapped(read, wrap):
    link, data = wrap(ip4("10.0.0.1", "10.0.0.2", 17, roce(0x0A, 3, 0, 900, 900)))
    (flow,) = read(pcap([(T, data)], link=link)).flows.to_dicts()
    assert (flow["src"], flow["dst"], flow["bytes"], flow["qp"]) == ("10.0.0.1", "10.0.0.2", 900, 3)


def test_ipv6_with_an_extension_header_is_read(read):
    datagram = roce(0x0A, 3, 0, 900, 900)
    extension = bytes([17, 0]) + bytes(6)
    data = ethernet(ip6("2001:db8::1", "2001:db8::2", 17, datagram, extension), kind=0x86DD)
    (flow,) = read([(T, data)]).flows.to_dicts()
    assert (flow["src"], flow["dst"], flow["bytes"]) == ("2001:db8::1", "2001:db8::2", 900)


def test_short_snapshots_keep_the_sizes(read):
    found = read(pcap(send_message(1, 0, [1024, 1024, 10], T), snap=64))
    assert found.flows["bytes"].to_list() == [2058]
    segment = ethernet(ip4("10.0.0.1", "10.0.0.2", 6, tcp(1, 2, bytes(9000))))
    assert read(pcap([(T, segment)], snap=64)).flows["bytes"].to_list() == [9000]


def test_packets_cut_inside_their_headers_are_counted_with_what_to_capture(read):
    """A snapshot of 64 bytes ends inside the TCP header of IPv6."""
    segment = ethernet(ip6("2001:db8::1", "2001:db8::2", 6, tcp(1, 2, bytes(9000))), kind=0x86DD)
    found = read(pcap([(T, segment)], snap=64))
    assert found.counts.malformed == {
        "packets cut inside their headers; capture at least 128 bytes of each (tcpdump -s 128)": 1
    }


@pytest.mark.parametrize(("packets", "num"), [([], 0), ([(T, ethernet(bytes(40), kind=0x8915))], 1)])
def test_a_capture_without_data_over_ip_says_so(read, packets, num):
    assert f"none of its {num} packets carries data over IP" in read(pcap(packets)).notes[0]


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_a_capture_may_be_compressed(tmp_path, ending, pack):
    path = tmp_path / f"x.pcap.{ending}"
    path.write_bytes(pack(pcap(write_message(1, 0, 500, T))))
    assert read_packets(path).flows["bytes"].to_list() == [500]


@pytest.mark.parametrize("version", [5, 9, 10])
def test_captured_exports_are_recognised_on_any_port(tmp_path, version):
    datagram = {
        5: struct.pack("!HHIIIIBBH", 5, 1, 1000, 1_700_000_000, 0, 0, 0, 0, 0) + bytes(48),
        9: struct.pack("!HHIIII", 9, 1, 1000, 1_700_000_000, 0, 1) + struct.pack("!HHHHHH", 0, 12, 256, 1, 8, 4),
        10: struct.pack("!HHIII", 10, 28, 1_700_000_000, 0, 1) + struct.pack("!HHHHHH", 2, 12, 256, 1, 8, 4),
    }[version]
    path = tmp_path / "exports.pcap"
    path.write_bytes(pcap([(T, ethernet(ip4("10.0.0.1", "10.0.0.2", 17, udp(5000, 6000, datagram))))]))
    assert "a capture of export datagrams" in read_packets(path).notes[0]
    path.write_bytes(pcap([(T, ethernet(ip4("10.0.0.1", "10.0.0.2", 17, udp(5000, 6000, datagram + b"x"))))]))
    assert read_packets(path).flows.height == 1


def test_a_packet_whose_card_left_the_length_empty_is_as_long_as_on_the_wire(read):
    segment = ethernet(ip4("10.0.0.1", "10.0.0.2", 6, tcp(1, 2, bytes(60_000)), length=0))
    assert read([(T, segment)]).flows["bytes"].to_list() == [60_000]


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_a_file_cut_mid_packet_gives_what_is_whole_and_one_note(read, make):
    packets = write_message(1, 0, 500, T) + write_message(1, 1, 600, T + MS)
    whole = make(packets)
    found = read(whole[:-100])
    assert found.flows["bytes"].to_list() == [500]
    assert len(found.notes) == 1 and "cut inside a packet" in found.notes[0]
    assert read(whole).notes == ()


def test_a_damaged_record_ends_the_reading_with_one_note(read):
    content = pcap(write_message(1, 0, 500, T)) + b"\xff" * 64
    found = read(content)
    assert found.flows["bytes"].to_list() == [500] and "not a packet record" in found.notes[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a pcap"),
        (b"PAR1xxxx", "not a pcap"),
        (b"\x1f\x8b\x08\x00", "broken gzip file"),
        (pcap([], link=105), "link type 105"),
    ],
)
def test_what_is_no_capture_is_one_clear_line(tmp_path, content, words):
    path = tmp_path / "x.pcap"
    path.write_bytes(content)
    with pytest.raises(BadFileError, match=words):
        read_packets(path)
    with pytest.raises(BadFileError, match="cannot be read"):
        read_packets(tmp_path / "missing.pcap")


def test_a_full_table_of_flows_grows_then_cuts_and_counts(read, monkeypatch):
    monkeypatch.setattr(assembling, "_LARGEST", 1 << 12)
    packets = [
        (T + i, ethernet(ip4(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", "10.255.0.1", 17, udp(1, 2, bytes(10)))))
        for i in range(5000)
    ]
    found = read(packets)
    assert found.flows["bytes"].sum() == 50_000
    assert found.counts.dropped["open bursts cut by a full table"] > 0
    monkeypatch.setattr(assembling, "_LARGEST", 1 << 20)
    found = read(packets)
    assert found.flows.height == 5000 and not found.counts.dropped


@settings(max_examples=40)
@given(st.data())
def test_noise_in_any_container_never_crashes(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("noise") / "n.pcap"
    good = [
        ethernet(ip4("10.0.0.1", "10.0.0.2", 17, roce(0x06, 1, 0, 64, 6400))),
        erspan3(ethernet(b"\x60" + bytes(60))),
    ]
    frames = []
    for i in range(drawn.draw(st.integers(1, 8))):
        frame = bytearray(drawn.draw(st.one_of(st.binary(max_size=120), st.sampled_from(good))))
        for _ in range(drawn.draw(st.integers(0, 6)) if frame else 0):
            frame[drawn.draw(st.integers(0, len(frame) - 1))] = drawn.draw(st.integers(0, 255))
        frames.append((T + i, bytes(frame)))
    make = drawn.draw(st.sampled_from([pcap, pcapng]))
    content = make(frames, link=drawn.draw(st.sampled_from([0, 1, 101, 113, 276])))
    path.write_bytes(content)
    assert read_packets(path).counts.received == len(frames)
    damaged = bytearray(content)
    for _ in range(drawn.draw(st.integers(1, 6))):
        damaged[drawn.draw(st.integers(24, len(content) - 1))] = drawn.draw(st.integers(0, 255))
    path.write_bytes(bytes(damaged[: drawn.draw(st.integers(24, len(content)))]))
    with contextlib.suppress(BadFileError):  # a damaged link type or section header, said in one line
        assert read_packets(path).counts.received <= len(content) // 16


@settings(max_examples=40)
@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=20), st.integers(0, 2**24 - 1), st.integers(1, 3))
def test_every_message_comes_out_once_with_its_size(tmp_path_factory, sizes, psn, num_qps):
    packets, when = [], T
    numbers = dict.fromkeys(range(num_qps), psn)
    for i, size in enumerate(sizes):
        qp = i % num_qps
        message = write_message(qp, numbers[qp], size, when, mtu=1024)
        numbers[qp] = (numbers[qp] + len(message)) & 0xFFFFFF
        when = message[-1][0] + 10
        packets += message
    path = tmp_path_factory.mktemp("m") / "m.pcap"
    path.write_bytes(pcap(packets))
    assert sorted(read_packets(path).flows["bytes"].to_list()) == sorted(sizes)
