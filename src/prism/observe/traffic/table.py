"""Traffic: the messages of one observation between numbered endpoints, and where those of each pair and stream are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.traffic.numbering import group_by_number

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One observation: messages between numbered endpoints.

    `messages`: pair start_ns end_ns bytes stream, ordered by pair and start, and begun (what was sent before a transfer
    waited) where exporters cut such transfers; `pairs`: pair src dst num bytes first_ns last_ns; `endpoints`: endpoint
    address host_id host rail switch known. A stream is what one pair sends over one connection in messages of one size.
    `begin[p]:begin[p + 1]` are the rows of pair p; `streams`: stream pair connection cut, the last where an active
    timeout cut the connection's records; and src_port dst_port where records have both.
    """

    messages: pl.DataFrame
    pairs: pl.DataFrame
    endpoints: pl.DataFrame
    notes: tuple[str, ...] = ()
    streams: pl.DataFrame = field(default_factory=pl.DataFrame, repr=False)
    begin: Ints = field(default_factory=lambda: np.zeros(1, np.int64), repr=False)
    resolution_ns: int = 1  # times are multiples of this
    active_ns: int = 0  # length at which the exporter cuts records of traffic that continues; 0 where it cuts none
    sample_bytes: float = 0.0  # that one sampled packet stands for; 0 where every packet was counted
    connected: bool = False  # whether connections (queue pairs or ports) are distinguished
    nics_of_host: dict[int, int] = field(default_factory=dict)  # NICs in the topology, by host_id
    nodes: tuple[Ints, Ints] | None = None  # by pair its ends, each numbered anew for every job that uses it in turn
    continued: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)  # nodes of jobs that grew
    tenants: Ints | None = None  # by pair, which of several jobs that use its ends at the same time it belongs to
    given: Ints | None = None  # by pair, the number of the job that an operator gave it to, -1 for none
    mixed: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)  # endpoints of one job or several

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """The sender and the receiver of each pair, as other numbers where another job uses the endpoint later."""
        if self.nodes is not None:
            return self.nodes
        return self.pairs["src"].to_numpy().astype(np.int64), self.pairs["dst"].to_numpy().astype(np.int64)

    def rows_of(self, pairs: Ints) -> Ints:
        """The rows of some pairs' messages, pair by pair."""
        return _list_ranges(self.begin[pairs], self.begin[pairs + 1])

    def messages_of(self, pairs: Ints) -> pl.DataFrame:
        """The messages of some pairs, pair by pair; where these pairs follow each other nothing is copied."""
        first, last = pairs[np.diff(pairs, prepend=-2) != 1], pairs[np.diff(pairs, append=-2) != 1]
        bounds = zip(self.begin[first].tolist(), self.begin[last + 1].tolist(), strict=True)
        parts = [self.messages.slice(begin, end - begin) for begin, end in bounds]
        return pl.concat(parts, rechunk=True) if parts else self.messages.clear()

    @cached_property
    def by_stream(self) -> tuple[Ints, Ints]:
        """The rows of messages stream by stream, and where those of each stream begin."""
        rows, begin = group_by_number(self.messages["stream"].to_numpy(), self.streams.height)
        return rows, begin

    @cached_property
    def columns(self) -> dict[str, Ints]:
        """The columns of the messages as arrays, unwrapped once for passes that ask for thousands of streams."""
        return {name: self.messages[name].to_numpy() for name in self.messages.columns}

    @cached_property
    def connection_of(self) -> Ints:
        """The connection of each stream."""
        connection: Ints = self.streams["connection"].to_numpy()
        return connection

    @cached_property
    def source_of(self) -> Ints:
        """The sender of each pair."""
        source: Ints = self.pairs["src"].to_numpy()
        return source

    @cached_property
    def stream_load(self) -> NDArray[np.float64]:
        """The bytes that each stream sent."""
        size, stream = self.messages["bytes"].to_numpy(), self.messages["stream"].to_numpy()
        return np.bincount(stream, size, minlength=self.streams.height).astype(np.float64)

    @cached_property
    def stream_num(self) -> Ints:
        """How many messages each stream has."""
        return np.diff(self.by_stream[1])

    def streams_of(self, pairs: Ints) -> Ints:
        """The streams of some pairs, pair by pair."""
        owner = self.streams["pair"].to_numpy()
        return _list_ranges(*(np.searchsorted(owner, pairs.astype(owner.dtype), side) for side in ("left", "right")))

    def rows_of_stream(self, stream: int) -> Ints:
        """The rows of one stream's messages, in order of start."""
        rows, begin = self.by_stream
        return rows[begin[stream] : begin[stream + 1]]

    def rows_of_streams(self, streams: Ints) -> Ints:
        """The rows of some streams' messages, stream by stream."""
        rows, begin = self.by_stream
        return rows[_list_ranges(begin[streams], begin[streams + 1])]


def split_pairs(traffic: Traffic, part: Ints) -> Traffic:
    """The traffic with a pair for each part of the messages of a pair; `part` numbers them by row."""
    old, most = traffic.messages["pair"].to_numpy().astype(np.int64), int(part.max(initial=0)) + 1
    used, pair = np.unique(old * most + part, return_inverse=True)
    stream = traffic.messages["stream"].to_numpy().astype(np.int64)
    cell, cells = stream * most + part, traffic.streams.height * most
    present = np.flatnonzero(np.bincount(cell, minlength=cells))
    owner = traffic.streams["pair"].to_numpy().astype(np.int64)
    stream_pair = np.searchsorted(used, owner[present // most] * most + present % most)
    order = np.lexsort((present, stream_pair))
    present, stream_pair = present[order], stream_pair[order]
    number = np.zeros(cells, np.int64)
    number[present] = np.arange(len(present))
    begin = np.append(0, np.cumsum(np.bincount(pair, minlength=len(used))))
    order = np.argsort(pair, kind="stable")
    size, start, end = (traffic.messages[c].to_numpy()[order] for c in ("bytes", "start_ns", "end_ns"))
    return replace(
        traffic,
        messages=traffic.messages.with_columns(
            pair=pl.Series(pair.astype(np.uint32)),
            stream=pl.Series(number[cell].astype(np.uint32)),
        )[order],
        pairs=traffic.pairs[used // most].with_columns(
            pair=pl.Series(np.arange(len(used), dtype=np.uint32)),
            num=pl.Series(np.diff(begin).astype(np.uint32)),
            bytes=pl.Series(np.add.reduceat(size, begin[:-1])),
            first_ns=pl.Series(start[begin[:-1]]),
            last_ns=pl.Series(np.maximum.reduceat(end, begin[:-1])),
        ),
        streams=traffic.streams[present // most].with_columns(
            stream=pl.Series(np.arange(len(present), dtype=np.uint32)),
            pair=pl.Series(stream_pair.astype(np.uint32)),
            connection=pl.Series(traffic.connection_of[present // most] * most + present % most),
        ),
        begin=begin,
        given=None if traffic.given is None else traffic.given[used // most],
        nodes=None if traffic.nodes is None else (traffic.nodes[0][used // most], traffic.nodes[1][used // most]),
    )


def _list_ranges(first: Ints, end: Ints) -> Ints:
    """The numbers from each first up to its end, one range after the other."""
    count = end - first
    before = np.repeat(np.cumsum(count) - count, count)
    listed: Ints = np.arange(len(before), dtype=np.int64) - before + np.repeat(first, count)
    return listed
