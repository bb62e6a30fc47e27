"""Damaged and random bytes for every decoder.

    python proving/benchmarks/collect_fuzz.py [INPUTS] [--seed N] [--tally FILE]

Each input is a valid piece of some protocol with bytes changed, cut, doubled or swapped. A crash ends the run with the
batch that caused it; a batch that takes over a second is named. With a tally the run goes on where it was stopped, and
runs of several seeds add up in one file. The full run is 10,000,000 inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # inputs are small: handing them to other threads takes longer
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "collect"))

import numpy as np
from export_bytes import BASIC, a_set, basic_record, ipfix, template_set
from packet_bytes import ethernet, ip4, ip6, pcap, pcapng, roce, tcp, udp
from sflow_bytes import counter_sample, flow_sample, raw_header, sflow
from test_flow_inputs import GCP, GOFLOW1, RWCUT, SFLOWTOOL, VPC, ZEEK
from test_streams import MESSAGES, RAW

from prism.collect import Collector, SourceCounts, read_packets
from prism.collect.assembler import FlowAssembler
from prism.collect.flow_inputs import load_inputs
from prism.collect.goflow import cut_delimited, decode_messages
from prism.collect.messages import MessageDecoder
from prism.collect.packets import ETHERNET, INDEX
from prism.collect.sflowtool import read_sflowtool
from prism.collect.topology_files import read_topology_sources
from prism.errors import InputError
from prism.records.delimited import is_delimited_protobuf
from prism.records.text_tables import find_text_table

_BATCH = 2_000  # of decoders that take many inputs at once
_FEW = 100  # of those that take a file each
_SLOW_S = 1.0
_SAVE_EVERY = 10  # rounds
RECORD = basic_record("10.0.0.1", "10.0.0.2", 7, 1_700_000_000_000, 1_700_000_000_005)
FRAMES = [
    ethernet(ip4("10.0.0.1", "10.0.0.2", 17, roce(7, 77, 1, 64))),
    ethernet(ip6("2001:db8::1", "2001:db8::2", 6, tcp(5, 6, bytes(40))), kind=0x86DD),
    ethernet(ip4("10.0.0.1", "10.0.0.2", 17, udp(5, 6, bytes(9))), vlans=2),
]
DATAGRAMS = [
    sflow(*(flow_sample(raw_header(f), expanded=e) for f in FRAMES for e in (False, True)), counter_sample(3)),
    sflow(counter_sample(1, expanded=True), agent="2001:db8::1"),
    ipfix(template_set({256: BASIC}), a_set(256, RECORD * 3)),
    bytes([0, 5, 0, 1]) + bytes(20) + bytes(48),
    bytes([0, 9, 0, 1]) + bytes(40),
]


def damage(rng: random.Random, seeds: list[bytes]) -> bytes:
    """One of the seeds with some bytes changed, cut, doubled or swapped."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(8)):
        if not data:
            break
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 1:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randrange(1, 17)]
        elif kind == 3:
            data[at : at + 4] = rng.randbytes(4)
        else:
            del data[at:]
    return bytes(data)


def feed_collector(inputs: list[bytes]) -> None:
    """IPFIX, NetFlow and sFlow."""
    collector = Collector()
    for number, one in enumerate(inputs):
        collector.feed(one, ("192.0.2.1", number % 5), number)
    collector.flush()


def feed_packets(inputs: list[bytes]) -> None:
    """Sampled and captured headers."""
    assembler = FlowAssembler(SourceCounts())
    index = np.zeros(len(inputs), INDEX)
    sizes = np.array([len(i) for i in inputs])
    index["offset"], index["captured"], index["length"], index["link"] = (
        np.cumsum(sizes) - sizes,
        sizes,
        sizes,
        ETHERNET,
    )
    index["time_ns"] = np.arange(len(inputs))
    assembler.take(np.frombuffer(b"".join(inputs) or b"\0", np.uint8), index)
    assembler.finish()


def feed_messages(inputs: list[bytes]) -> None:
    """Messages of topics and files of them."""
    MessageDecoder().decode(inputs)
    data = b"".join(inputs)
    decode_messages(data, cut_delimited(data)[0], SourceCounts())


def feed_texts(inputs: list[bytes]) -> None:
    """What tells files apart, and the text of sflowtool."""
    for one in inputs:
        is_delimited_protobuf(one)
        text = one.decode(errors="replace")
        for read in (lambda t: find_text_table(t, "f"), lambda t: read_sflowtool(Path("f"), t, SourceCounts())):
            try:
                read(text)
            except InputError:
                continue


def feed_files(inputs: list[bytes], read: Callable[[Path], object], suffix: str) -> None:
    """A file for each input, in memory where there is a place for that."""
    memory = Path("/dev/shm")
    with tempfile.NamedTemporaryFile(suffix=suffix, dir=memory if memory.is_dir() else None) as handle:
        for one in inputs:
            handle.seek(0)
            handle.truncate()
            handle.write(one)
            handle.flush()
            try:
                read(Path(handle.name))
            except InputError:
                continue


def feed_captures(inputs: list[bytes]) -> None:
    """Capture files."""
    feed_files(inputs, read_packets, ".pcap")


def feed_tables(inputs: list[bytes]) -> None:
    """Files of unknown kind, told apart by content and read to the end."""
    feed_files(inputs, load_inputs, ".txt")


def feed_topologies(inputs: list[bytes]) -> None:
    """LLDP, SONiC and NetBox documents."""
    feed_files(inputs, lambda path: read_topology_sources([path]), ".json")


TEXTS = [
    repr(SFLOWTOOL).replace("'", '"').encode(),
    b"#separator \\x09\n#fields\tts\n1\n",
    b"a|b|c|d|\n1|2|3|4|\n",
]
PACKETS = [(1_700_000_000_000_000_000 + i, f) for i, f in enumerate(FRAMES)]
TABLES = [
    *(text.encode() for text in (ZEEK, VPC, RWCUT, json.dumps(GCP), json.dumps(GOFLOW1))),
    b"src,dst,bytes,start_ns,end_ns\n10.0.0.1,10.0.0.2,1000,1700000000000000000,1700000000000250000\n",
]
ADDRESSES = [{"ifname": "eth0", "addr_info": [{"family": "inet", "local": "10.0.0.1", "scope": "global"}]}]
TOPOLOGIES = [
    json.dumps(document).encode()
    for document in (
        ADDRESSES,
        {"lldp": {"interface": [{"eth0": {"chassis": {"leaf-1": {"mgmt-ip": "192.0.2.1"}}, "port": {}}}]}},
        {"lldp": [{"interface": [{"name": "eth0", "chassis": [{"name": [{"value": "leaf-1"}]}]}]}]},
        {"DEVICE_METADATA": {"localhost": {"hostname": "leaf-1"}}, "DEVICE_NEIGHBOR": {"E0": {"name": "node-1"}},
         "INTERFACE": {"E0": {}, "E0|10.0.0.0/31": {}}},
        {"results": [{"address": "10.0.0.1/24", "assigned_object": {"name": "eth0", "device": {"name": "node-1"}}},
                     {"name": "eth0", "device": {"name": "node-1"},
                      "connected_endpoints": [{"device": {"name": "leaf-1"}}]}]},
    )
]  # fmt: skip
DECODERS: list[tuple[str, Callable[[list[bytes]], None], list[bytes], int]] = [
    ("exports", feed_collector, DATAGRAMS, _BATCH),
    ("packets", feed_packets, FRAMES, _BATCH),
    ("messages", feed_messages, [*MESSAGES.values(), RAW.SerializeToString()], _BATCH),
    ("texts", feed_texts, TEXTS, 5 * _FEW),
    ("captures", feed_captures, [pcap(PACKETS), pcapng(PACKETS)], _FEW // 4),
    ("tables", feed_tables, TABLES, _FEW // 2),
    ("topologies", feed_topologies, TOPOLOGIES, _FEW),
]


@dataclass
class Tally:
    """Inputs tried so far, by seed and decoder, kept in a file so that a stopped run goes on."""

    path: Path | None
    done: dict[str, dict[str, int]]

    @classmethod
    def load(cls, path: Path | None) -> Tally:
        """The tally of a file; an empty one where there is none."""
        return cls(path, json.loads(path.read_text()) if path is not None and path.exists() else {})

    def save(self) -> None:
        """Write the tally, whole or not at all."""
        if self.path is not None:
            part = self.path.with_suffix(".tmp")
            part.write_text(json.dumps(self.done))
            part.replace(self.path)

    def total(self) -> int:
        """Inputs of all seeds and decoders."""
        return sum(sum(by_decoder.values()) for by_decoder in self.done.values())


def run_round(number: int, seed: int, done: dict[str, int]) -> float:
    """One batch for every decoder; returns the CPU seconds of the slowest."""
    slowest = 0.0
    for name, feed, seeds, size in DECODERS:
        rng = random.Random(f"{seed} {name} {number}")  # any round can be repeated alone
        inputs = [damage(rng, seeds) for _ in range(size)]
        before = time.process_time()
        try:
            feed(inputs)
        except Exception:
            Path("fuzz-input.bin").write_bytes(b"\n--\n".join(inputs))
            print(f"{name}: crashed in round {number} of seed {seed}; the batch is in fuzz-input.bin")
            raise
        took = time.process_time() - before
        slowest = max(slowest, took)
        if took > _SLOW_S and number:  # The first round compiles.
            print(f"{name}: a batch of {size} took {took:.1f} s in round {number} of seed {seed}", flush=True)
        done[name] = done.get(name, 0) + size
    return slowest


def main() -> None:
    """Feed every decoder in turns until enough inputs of all seeds have been tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", nargs="?", type=int, default=10_000_000, help="of all seeds in the tally together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tally", type=Path)
    asked = parser.parse_args()
    tally = Tally.load(asked.tally)
    done = tally.done.setdefault(str(asked.seed), {})
    number = done.get("exports", 0) // _BATCH
    slowest, begin = 0.0, time.monotonic()
    while tally.total() < asked.inputs:
        took = run_round(number, asked.seed, done)
        slowest = max(slowest, took if number else 0.0)
        number += 1
        if number % _SAVE_EVERY == 0:
            tally.save()
    tally.save()
    print(
        f"{tally.total():,} inputs of seeds {sorted(map(int, tally.done))}, the last part in "
        f"{time.monotonic() - begin:,.0f} s, no crash; slowest batch {slowest:.2f} CPU-s; {tally.done}"
    )


if __name__ == "__main__":
    main()
