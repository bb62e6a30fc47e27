"""Sources: packets and flows decoded per second, beside other Python parsers, and a stream watched with flat memory.

    python proving/benchmarks/observe_sources.py [--packets 2000000] [--flows 2000000] [--stream-s 600] [--rate 200000]

The peers (dpkt, netflow) are measured where installed, on a tenth of the input, and do less: headers only.
Rates are per second of processor time, all threads together. `--stream-s 0` leaves the stream out.
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from machine import describe_machine

RECORD = np.dtype(
    [("src", ">u4"), ("dst", ">u4"), ("src_port", ">u2"), ("dst_port", ">u2"), ("bytes", ">u8"), ("packets", ">u4"),
     ("start", ">u8"), ("end", ">u8")]
)  # fmt: skip
FIELDS = ((8, 4), (12, 4), (7, 2), (11, 2), (1, 8), (2, 4), (152, 8), (153, 8))
PER_DATAGRAM = 33  # 33 x 40 bytes fill an Ethernet frame
BASE_MS = 1_700_000_000_000


def best_cpu(times: int, run: Callable[[], Any]) -> float:
    """The fewest seconds of processor time of several runs, all threads together: what "per core" means."""
    spent = []
    for _ in range(times):
        begin = time.process_time()
        run()
        spent.append(time.process_time() - begin)
    return min(spent)


def make_capture(path: Path, num: int, snap: int = 128) -> None:
    """RDMA writes of 32 packets between 512 endpoints, 4 KiB payload, headers kept."""
    size = 16 + snap
    table = np.zeros((num, size), np.uint8)
    i = np.arange(num)
    qp, at = i // 32 % 1024, i % 32
    when = BASE_MS * 1_000_000 + i * 100
    table[:, 0:4] = (when // 10**9).astype("<u4").view(np.uint8).reshape(-1, 4)
    table[:, 4:8] = (when % 10**9).astype("<u4").view(np.uint8).reshape(-1, 4)
    table[:, 8:12] = np.frombuffer(struct.pack("<I", snap), np.uint8)
    wire = 14 + 20 + 8 + 12 + 16 + 4096 + 4
    table[:, 12:16] = np.frombuffer(struct.pack("<I", wire), np.uint8)
    head = bytes(12) + b"\x08\x00" + struct.pack("!BBHIBBH", 0x45, 0, wire - 14, 0, 64, 17, 0)
    table[:, 16:42] = np.frombuffer(head, np.uint8)
    table[:, 42:46] = (0x0A000000 + qp % 512).astype(">u4").view(np.uint8).reshape(-1, 4)
    table[:, 46:50] = (0x0A000000 + (qp + 1) % 512).astype(">u4").view(np.uint8).reshape(-1, 4)
    table[:, 50:58] = np.frombuffer(struct.pack("!HHHH", 49152, 4791, wire - 34, 0), np.uint8)
    table[:, 58] = np.select([at == 0, at == 31], [0x06, 0x08], 0x07)
    table[:, 62:66] = qp.astype(">u4").view(np.uint8).reshape(-1, 4)
    psn = i // (32 * 1024) * 32 + at
    table[:, 66:70] = (psn & 0xFFFFFF).astype(">u4").view(np.uint8).reshape(-1, 4)
    table[:, 82:86] = np.frombuffer(struct.pack("!I", 32 * 4096), np.uint8)
    header = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 16, 1)
    path.write_bytes(header + table.tobytes())


def template_message(sequence: int) -> bytes:
    """The IPFIX message that announces the records."""
    body = struct.pack("!HH", 256, len(FIELDS)) + b"".join(struct.pack("!HH", *f) for f in FIELDS)
    return message(struct.pack("!HH", 2, 4 + len(body)) + body, sequence, BASE_MS // 1000)


def message(sets: bytes, sequence: int, export_s: int) -> bytes:
    return struct.pack("!HHIII", 10, 16 + len(sets), export_s, sequence % 2**32, 1) + sets


def make_records(num: int, start_ms: int, span_ms: int, endpoints: int = 2048) -> np.ndarray[Any, Any]:
    """Rings of eight: everyone sends 1 MiB to the next, over and over, and 8 MiB at the end of every second."""
    out = np.zeros(num, RECORD)
    i = np.arange(num)
    src = i % endpoints
    out["src"] = 0x0A000000 + src
    out["dst"] = 0x0A000000 + src // 8 * 8 + (src + 1) % 8
    out["src_port"], out["dst_port"] = 49152, 4791
    out["bytes"] = 1 << (23 if start_ms % 1000 >= 800 else 20)
    out["packets"] = 256
    out["start"] = start_ms + i * span_ms // num
    out["end"] = out["start"] + 2
    return out


def make_datagrams(records: np.ndarray[Any, Any], sequence: int, export_s: int) -> list[bytes]:
    """Data messages of the records."""
    raw, out = records.tobytes(), []
    for at in range(0, len(records), PER_DATAGRAM):
        body = raw[at * RECORD.itemsize : (at + PER_DATAGRAM) * RECORD.itemsize]
        out.append(message(struct.pack("!HH", 256, 4 + len(body)) + body, sequence + at, export_s))
    return out


def bench_pcap(num: int) -> None:
    from prism.collect import read_packets

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.pcap"
        make_capture(path, num)
        messages = read_packets(path).flows.height  # compiles, and fills the file cache for all
        assert messages == num // 32, (messages, num // 32)
        ours = num / best_cpu(3, lambda: read_packets(path))
        print(f"pcap   prism   {ours / 1e6:8.2f} M packets/s into {messages:,} RoCE messages")
        if importlib.util.find_spec("dpkt") is None:
            return
        import dpkt

        small = Path(folder) / "small.pcap"
        make_capture(small, num // 10)

        def walk() -> None:
            with small.open("rb") as handle:
                for _, raw in dpkt.pcap.Reader(handle):
                    ip = dpkt.ethernet.Ethernet(raw).data
                    _ = ip.src, ip.dst, ip.data.dport

        theirs = num / 10 / best_cpu(3, walk)
        print(f"pcap   dpkt    {theirs / 1e6:8.3f} M packets/s, headers only: prism is {ours / theirs:,.0f} x as fast")


def bench_ipfix(num: int) -> None:
    from prism.collect import Collector

    template = template_message(0)
    datagrams = make_datagrams(make_records(num, BASE_MS, 1000), 0, BASE_MS // 1000)

    def collect(given: list[bytes]) -> int:
        collector = Collector()
        collector.feed(template, ("192.0.2.1", 1), 0)
        total = 0
        for i, datagram in enumerate(given):
            collector.feed(datagram, ("192.0.2.1", 1), 0)
            if i % 8192 == 0:
                total += collector.flush().height
        assert collector.counts.lost == 0
        return total + collector.flush().height

    assert collect(datagrams) == num
    ours = num / best_cpu(3, lambda: collect(datagrams))
    print(f"ipfix  prism   {ours / 1e6:8.2f} M flows/s, {PER_DATAGRAM} to a datagram")
    if importlib.util.find_spec("netflow") is None:
        return
    import netflow

    some = datagrams[: max(1, len(datagrams) // 100)]

    def parse() -> None:
        known: dict[str, Any] = {"netflow": {}, "ipfix": {}}
        for datagram in [template, *some]:
            netflow.parse_packet(datagram, known)

    theirs = len(some) * PER_DATAGRAM / best_cpu(3, parse)
    print(f"ipfix  netflow {theirs / 1e6:8.3f} M flows/s: prism is {ours / theirs:,.0f} times as fast")


def send_stream(address: tuple[str, int], rate: int, seconds: float, sent: Any) -> None:
    """Send flows that end now, ten batches a second."""
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sequence = 0
    begin = time.monotonic()
    for tick in range(int(seconds * 10)):
        pause = begin + tick / 10 - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        now_ms = int(time.time() * 1000)
        if tick % 50 == 0:
            out.sendto(template_message(sequence), address)
        records = make_records(rate // 10, now_ms - 100, 100)
        for datagram in make_datagrams(records, sequence, now_ms // 1000):
            out.sendto(datagram, address)
        sequence += len(records)
        sent.value = sequence


def bench_stream(rate: int, seconds: float) -> None:
    """Watch a stream over loopback; memory and processor time are the watcher's, without the process that looks.

    "lost %" includes what is still queued; "cpu %" is of one core, since the start.
    """
    from prism.collect import open_source
    from prism.observe.watch.stream import Watch, WatchConfig

    source = open_source("ipfix://127.0.0.1:0")
    watch = Watch(source, None, WatchConfig(), lambda document: None, say=print)
    stop = threading.Event()
    runner = threading.Thread(target=watch.run, args=(stop.is_set,))
    runner.start()
    context = get_context("spawn")
    sent = context.Value("q", 0)
    sender = context.Process(target=send_stream, args=(source.address, rate, seconds, sent))  # type: ignore[attr-defined]
    sender.start()
    begin = time.monotonic()
    print("     s         sent        taken  lost %  rss MB  cpu %     window  looks  look s  lag s")
    while sender.is_alive():
        sender.join(max(seconds / 20, 5))
        status = watch.status()
        lost = 100 * (1 - status.flows / max(1, sent.value))
        print(
            f"{time.monotonic() - begin:6.0f} {sent.value:12,} {status.flows:12,} {lost:7.2f} {rss_bytes() / 1e6:7.0f} "
            f"{100 * time.process_time() / (time.monotonic() - begin):6.0f} "
            f"{status.window_flows:10,} {status.looks:6} {status.look_seconds:7.2f} {status.lag_seconds or 0:6.1f}",
            flush=True,
        )
    time.sleep(2)  # what is under way arrives
    status, took = watch.status(), seconds
    print(f"stream {status.flows / took:,.0f} flows/s taken of {sent.value / took:,.0f} sent; {status.lost:,} lost")
    stop.set()
    runner.join()


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=2_000_000)
    parser.add_argument("--flows", type=int, default=2_000_000)
    parser.add_argument("--stream-s", type=float, default=600)
    parser.add_argument("--rate", type=int, default=200_000)
    arguments = parser.parse_args()
    print(describe_machine())
    if arguments.packets:
        bench_pcap(arguments.packets // 32768 * 32768)
    if arguments.flows:
        bench_ipfix(arguments.flows)
    if arguments.stream_s:
        bench_stream(arguments.rate, arguments.stream_s)


if __name__ == "__main__":
    main()
