"""What sflowtool prints (its default text, -j and -J): the sampled headers in it, dissected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prism.collect.counts import SourceCounts
from prism.collect.packets import ETHERNET, INDEX, IPV4, IPV6, PACKET, PLAIN, ROCE, dissect
from prism.collect.sampled_packets import to_flows
from prism.errors import BadFileError

_LINKS = {"1": ETHERNET, "11": IPV4, "12": IPV6}
_NS = 10**9


@dataclass(slots=True)
class _Headers:
    """Sampled headers gathered from text."""

    data: list[bytes] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, str]] = field(default_factory=list)  # time, link, length, rate, agent
    clocks: dict[str, int] = field(default_factory=dict)  # agent -> when it started, as far as whole seconds tell

    def take(self, datagram: dict[str, Any], sample: dict[str, Any], element: dict[str, Any]) -> None:
        """Keep one element that holds a packet header."""
        raw = bytes.fromhex(str(element["headerBytes"]).replace("-", ""))
        link = _LINKS.get(str(element.get("headerProtocol", "1")))
        if link is None:
            return
        length = _whole(element.get("sampledPacketSize", len(raw))) - _whole(element.get("strippedBytes", 0))
        rate = _whole(sample.get("meanSkipCount", 1))
        agent = str(datagram.get("agent") or datagram.get("datagramSourceIP"))
        self.data.append(raw)
        self.rows.append((self._time(datagram, agent), link, max(length, len(raw)), rate, agent))

    def _time(self, datagram: dict[str, Any], agent: str) -> int:
        """The receiver's clock in whole seconds, refined by the agent's uptime in milliseconds."""
        whole = _whole(datagram["unixSecondsUTC"]) * _NS
        uptime = _whole(datagram.get("sysUpTime", 0)) * 1_000_000
        if uptime == 0:
            return whole
        # Whole seconds are up to 1 s early, so the latest guess of the start is the best.
        guess = whole - uptime
        known = self.clocks.get(agent)
        if known is None or guess > known or known - guess > 2 * _NS:
            self.clocks[agent] = known = guess
        return known + uptime


def read_sflowtool(path: Path, text: str, counts: SourceCounts) -> pl.DataFrame:
    """Sampled packets as FLOWS."""
    headers = _Headers()
    try:
        for datagram, sample, element in _elements(text):
            counts.received += 1
            headers.take(datagram, sample, element)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFileError(f"{path}: not what sflowtool prints ({error}); print it again with sflowtool -J") from None
    index = np.zeros(len(headers.data), INDEX)
    sizes = np.array([len(d) for d in headers.data], np.int64)
    index["offset"] = np.cumsum(sizes) - sizes
    index["captured"] = sizes
    for name, place in (("time_ns", 0), ("link", 1), ("length", 2)):
        index[name] = [row[place] for row in headers.rows]
    packets = np.zeros(len(index), PACKET)
    data = np.frombuffer(b"".join(headers.data) or b"\0", np.uint8)
    dissect(data, index, packets)
    rates = np.array([row[3] for row in headers.rows], np.int64)
    agents = pl.Series([row[4] for row in headers.rows], dtype=pl.String)
    useful = ((packets["kind"] == PLAIN) | (packets["kind"] == ROCE)) & (packets["payload"] > 0)
    return to_flows(packets[useful], rates[useful], agents.filter(pl.Series(useful)))


def _whole(value: object) -> int:
    """A number of sFlow's: whole, and 32 bits wide."""
    number = int(str(value))
    if not 0 <= number < 1 << 32:
        raise ValueError(f"{number} where 32 bits were expected")
    return number


def _elements(text: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    if text.lstrip().startswith("startDatagram"):
        yield from _text_elements(text)
        return
    decoder = json.JSONDecoder()
    text = text.strip().removeprefix("[").removesuffix("]")
    at = 0
    while at < len(text):
        datagram, at = decoder.raw_decode(text, at)
        for sample in datagram.get("samples", ()):
            for element in sample.get("elements", ()):
                if "headerBytes" in element:
                    yield datagram, sample, element
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1


def _text_elements(text: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    datagram: dict[str, Any] = {}
    sample: dict[str, Any] = {}
    inside = datagram
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if key == "startDatagram":
            inside = datagram = {}
        elif key == "startSample":
            inside = sample = {}
        elif key == "endSample":
            if "headerBytes" in sample:
                yield datagram, sample, sample
            inside = datagram
        elif key:
            inside[key] = value.strip()
