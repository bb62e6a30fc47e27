"""Flows made ready for analysis: endpoints, pairs and connections as numbers, sizes in classes, oddities counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.traffic.exports import find_active_timeout, mark_cut
from prism.observe.traffic.merged_records import find_merged, place_messages
from prism.observe.traffic.numbering import (
    classify_sizes,
    group_by_number,
    mark_exported_twice,
    mark_repeated,
    number_again,
    number_keys,
    number_parallel,
)
from prism.observe.traffic.threads import do_each
from prism.observe.traffic.torn_transfers import find_torn
from prism.records.flow_summary import endpoints_of

Ints = NDArray[np.int64]

SIZE_TOLERANCE = 0.02
"""Messages of one connection whose sizes differ by less are of one size: headers and retransmissions add a few in ten
thousand."""
_MANY_SIZES = 8  # that chance makes of one
_CHANCE = 3.0  # deviations
_LARGEST_PACKET = 9216  # a jumbo frame; sizes that are all multiples of more were estimated from samples
_MANY_CONNECTIONS = 24.0  # per pair; ports that are new for every record say nothing
_MIN_PER_CONNECTION = 3.0
_SEEN_TWICE = 0.002  # by which two exporters' counts of one message may differ
_CLOCKS_APART_NS = 20_000  # by which two exporters' clocks may differ
_MOSTLY_TWICE = 0.3  # share of all records that repeat another, where two exporters see the same traffic
_MANY_KEYS, _PARTS = 500_000, 4  # more are numbered in so many parts


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One observation: messages between numbered endpoints.

    `messages`: pair start_ns end_ns bytes size_class stream, ordered by pair and start; `pairs`: pair src dst num bytes
    first_ns last_ns; `endpoints`: endpoint address host_id host rail switch known. A stream is what one pair sends over
    one connection in messages of one size; `size_class` numbers the streams of a pair, `stream` those of all pairs.
    `begin[p]:begin[p + 1]` are the rows of pair p; `streams`: stream pair size_class connection cut, the last where an
    active timeout cut the connection's records.
    """

    messages: pl.DataFrame
    pairs: pl.DataFrame
    endpoints: pl.DataFrame
    notes: tuple[str, ...] = ()
    streams: pl.DataFrame = field(default_factory=pl.DataFrame, repr=False)
    begin: Ints = field(default_factory=lambda: np.zeros(1, np.int64), repr=False)
    resolution_ns: int = 1  # times are multiples of this
    active_ns: int = 0  # length at which the exporter cuts records of traffic that goes on; 0 where it cuts none
    sample_bytes: float = 0.0  # that one sampled packet stands for; 0 where every packet was counted
    connected: bool = False  # whether connections (queue pairs or ports) are told apart
    nics_of_host: dict[int, int] = field(default_factory=dict)  # NICs in the topology, by host_id
    nodes: tuple[Ints, Ints] | None = None  # by pair its ends, each numbered anew for every job that uses it in turn
    continued: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)  # nodes of jobs that grew

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """The sender and the receiver of each pair, as other numbers where another job uses the endpoint later."""
        if self.nodes is not None:
            return self.nodes
        return self.pairs["src"].to_numpy().astype(np.int64), self.pairs["dst"].to_numpy().astype(np.int64)

    def rows_of(self, pairs: Ints) -> Ints:
        """The rows of some pairs' messages, pair by pair."""
        return _list_ranges(self.begin[pairs], self.begin[pairs + 1])

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


def _list_ranges(first: Ints, end: Ints) -> Ints:
    """The numbers from each first up to its end, one range after the other."""
    count = end - first
    before = np.repeat(np.cumsum(count) - count, count)
    listed: Ints = np.arange(len(before), dtype=np.int64) - before + np.repeat(first, count)
    return listed


def prepare_traffic(flows: pl.DataFrame, topology: pl.DataFrame | None = None) -> Traffic:
    """Number the endpoints and pairs of FLOWS and clean the records; without a topology every endpoint is a host."""
    notes: list[str] = []
    flows, *ends = _keep_messages(flows, notes)
    src, dst, addresses = _number_addresses(*ends)
    endpoints = _number_endpoints(addresses, topology, notes)
    pair, keys = _number_pairs(src * max(endpoints.height, 1) + dst)
    del src, dst, ends
    connection, connected = _number_connections(flows, pair, len(keys))
    num_connections = int(connection.max(initial=-1)) + 1
    records = _order_records(flows, pair, connection, len(keys))
    repeated = mark_repeated(records.connection, num_connections, records.start, records.end, records.size)
    if repeated.any():
        notes.append(f"{int(repeated.sum()):,} repeated flows were left out")
        records = records.take(np.flatnonzero(~repeated))
    if connected:
        records = _leave_second_exports(records, num_connections, notes)
    quantum = _find_quantum(records.size, _read_rate(flows))
    active_ns = find_active_timeout(records.connection, records.start, records.end, records.size)
    if connected and not quantum:  # Sizes that are estimated add up by chance.
        records = _join_torn(_split_merged(records, notes), notes)
    grouped, begin = group_by_number(records.connection, num_connections)
    classes, owners = classify_sizes(records.size, grouped, begin, SIZE_TOLERANCE, quantum)
    del grouped
    if not connected:
        classes, owners = _split_parallel(classes, owners, records)
    stream, found = number_again(classes, len(owners))
    traffic = _assemble(records, stream, owners[found], keys, endpoints, tuple(notes), topology, connected)
    cut = mark_cut(
        traffic.columns["stream"], traffic.connection_of, records.end - records.start, records.size, active_ns
    )
    streams = traffic.streams.with_columns(pl.Series("cut", cut))
    return replace(traffic, sample_bytes=quantum, active_ns=active_ns, streams=streams)


def _leave_second_exports(records: Records, num_connections: int, notes: list[str]) -> Records:
    """The records without those of a second exporter, where most of the traffic was exported twice."""
    columns = (records.connection, num_connections, records.start, records.end, records.size)
    twice = mark_exported_twice(*columns, _SEEN_TWICE, _CLOCKS_APART_NS)
    if twice.sum() < _MOSTLY_TWICE * len(twice):
        return records
    notes.append(f"{int(twice.sum()):,} flows were exported twice, by the switches at both ends, and count once")
    return records.take(np.flatnonzero(~twice))


def _join_torn(records: Records, notes: list[str]) -> Records:
    """The records with the two parts of torn transfers as one."""
    torn = find_torn(records.connection, records.start, records.end, records.size)
    if not len(torn.head):
        return records
    notes.append(f"{len(torn.head):,} transfers that waited were exported in two records each, and were joined")
    end, size = records.end.copy(), records.size.copy()
    end[torn.head], size[torn.head] = end[torn.tail], size[torn.head] + size[torn.tail]
    kept = np.ones(len(end), np.bool_)
    kept[torn.tail] = False
    return replace(records, end=end, size=size).take(np.flatnonzero(kept))


def _split_merged(records: Records, notes: list[str]) -> Records:
    """The records with the messages that an idle timeout merged each on their own."""
    split = find_merged(records.connection, records.start, records.end, records.size)
    merged = int((split.messages > 1).sum())
    if not merged:
        return records
    notes.append(f"{merged:,} records hold several messages that an idle timeout merged, and were split")
    row, start, end, size = place_messages(split, records.start, records.end, records.size)
    order = np.lexsort((start, records.pair[row]))
    whole = Records(pair=records.pair[row], connection=records.connection[row], start=start, end=end, size=size)
    return whole.take(order)


def _split_parallel(classes: Ints, owners: Ints, records: Records) -> tuple[Ints, Ints]:
    """Classes and their connections, where what pairs send side by side is told apart."""
    slots = number_parallel(classes, len(owners), records.start, records.end)
    most = int(slots.max(initial=0)) + 1
    if most == 1:
        return classes, owners
    parted, keys = number_keys(classes * most + slots)
    order = np.argsort(keys)
    place = np.empty(len(keys), np.int64)
    place[order] = np.arange(len(keys))
    keys = keys[order]
    return place[parted], owners[keys // most] * most + keys % most


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The columns of all records, pair by pair, those of a pair in order of start."""

    pair: Ints
    connection: Ints
    start: Ints
    end: Ints
    size: Ints

    def take(self, rows: Ints) -> Records:
        """Some of the records."""
        return Records(
            pair=self.pair[rows],
            connection=self.connection[rows],
            start=self.start[rows],
            end=self.end[rows],
            size=self.size[rows],
        )


def _keep_messages(flows: pl.DataFrame, notes: list[str]) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """The flows that carry bytes from one endpoint to another, and their ends as categories; notes tell of the rest."""
    kind = pl.Categorical(pl.Categories.random())  # not the common ones, which grow for as long as a process lives
    src, dst = do_each(lambda column: flows[column].cast(kind), ("src", "dst"))
    other = src.to_physical() != dst.to_physical()
    kept = other & (flows["bytes"] > 0)
    if kept.all():
        return flows, src, dst
    if not other.all():
        notes.append(f"{int((~other).sum()):,} flows from an endpoint to itself were left out")
    if int((other & ~kept).sum()):
        notes.append(f"{int((other & ~kept).sum()):,} flows without bytes were left out")
    return flows.filter(kept), src.filter(kept), dst.filter(kept)


def _number_addresses(src: pl.Series, dst: pl.Series) -> tuple[Ints, Ints, pl.Series]:
    """Both ends of each flow, as numbers of addresses in their order, and those addresses."""
    codes = [side.to_physical().to_numpy() for side in (src, dst)]
    num = int(max(code.max(initial=0) for code in codes)) + 1
    used = np.flatnonzero(sum(do_each(lambda code: np.bincount(code, minlength=num), codes)))
    names = pl.Series(used.astype(np.uint32)).cat.to(src.dtype).cast(pl.String)
    place = np.zeros(num, np.int64)
    place[used[names.arg_sort().to_numpy()]] = np.arange(len(used))
    ends = do_each(lambda code: place[code], codes)
    return ends[0], ends[1], endpoints_of(pl.DataFrame({"src": names, "dst": names}))


def _number_pairs(pair_key: Ints) -> tuple[Ints, Ints]:
    """Numbers of pairs in order of their keys, and the keys."""
    number, keys = _number_all(pair_key)
    order = np.argsort(keys)
    place = np.empty(len(keys), np.int64)
    place[order] = np.arange(len(keys))
    return place[number] if len(keys) else number, keys[order]


def _number_all(keys: Ints) -> tuple[Ints, Ints]:
    """What `number_keys` makes of them, several parts at once."""
    parts = np.array_split(keys, _PARTS) if len(keys) > _MANY_KEYS else [keys]
    done = do_each(number_keys, parts)
    again, found = number_keys(np.concatenate([own for _, own in done]))
    ends = np.cumsum([len(own) for _, own in done])
    table = np.split(again, ends[:-1])
    return np.concatenate(do_each(lambda k: table[k][done[k][0]], range(len(parts)))), found


def _number_connections(flows: pl.DataFrame, pair: Ints, num_pairs: int) -> tuple[Ints, bool]:
    """Numbers of connections, and whether these are told apart; else they are those of the pairs."""
    named = next((c for c in ("qp", "src_port") if c in flows.columns and flows[c].null_count() == 0), None)
    if named is None or not num_pairs:
        return pair, False
    connection, found = _number_all(pair * (1 << 32) + flows[named].cast(pl.Int64).to_numpy() % (1 << 32))
    if len(found) > _MANY_CONNECTIONS * num_pairs or len(connection) < _MIN_PER_CONNECTION * len(found):
        return pair, False
    return connection, True


def _list_ends(flows: pl.DataFrame) -> Ints:
    """When flows end; when they start, where an exporter gave no end."""
    ends = flows["end_ns"]
    return (ends if not ends.null_count() else flows.select(pl.coalesce("end_ns", "start_ns")).to_series()).to_numpy()


def _order_records(flows: pl.DataFrame, pair: Ints, connection: Ints, num_pairs: int) -> Records:
    """The records pair by pair, those of a pair in order of start."""
    start = flows["start_ns"].to_numpy()
    rows, begin = group_by_number(pair, num_pairs)
    grouped = start[rows]
    turns = grouped[1:] < grouped[:-1]
    turns[begin[1:-1] - 1] = False  # where the next pair begins
    if turns.any():
        order = np.argsort(start, kind="stable")
        rows = order[group_by_number(pair[order], num_pairs)[0]]
        grouped = start[rows]
    end, size, ordered = do_each(
        lambda column: column[rows], (_list_ends(flows), flows["bytes"].to_numpy(), connection)
    )
    number = np.repeat(np.arange(num_pairs), np.diff(begin))
    # Some exporters mix the two up; a transfer does not end before it starts.
    return Records(pair=number, connection=ordered, start=grouped, end=np.maximum(grouped, end), size=size)


def _assemble(
    records: Records, number: Ints, connection: Ints, keys: Ints, endpoints: pl.DataFrame, notes: tuple[str, ...],
    topology: pl.DataFrame | None, connected: bool,
) -> Traffic:  # fmt: skip
    """Messages by pair and start, with the number of the stream of each; `connection` is that of each stream."""
    num_pairs = len(keys)
    pair_begin = np.searchsorted(records.pair, np.arange(num_pairs + 1))
    pair = records.pair
    stream_pair = np.zeros(len(connection), np.int64)
    stream_pair[number] = pair
    first_stream = np.searchsorted(stream_pair, np.arange(num_pairs + 1))
    messages = pl.DataFrame(
        {
            "pair": pair.astype(np.uint32),
            "start_ns": records.start,
            "end_ns": records.end,
            "bytes": records.size,
            "size_class": (number - first_stream[pair]).astype(np.uint32),
            "stream": number.astype(np.uint32),
        }
    )
    streams = pl.DataFrame(
        {
            "stream": np.arange(len(connection), dtype=np.uint32),
            "pair": stream_pair.astype(np.uint32),
            "size_class": (np.arange(len(connection)) - first_stream[stream_pair]).astype(np.uint32),
            "connection": connection,
        }
    )
    return Traffic(
        messages=messages,
        pairs=_describe_pairs(keys, pair_begin, records, endpoints.height),
        endpoints=endpoints,
        notes=notes,
        streams=streams,
        begin=pair_begin,
        resolution_ns=find_resolution(records.start),
        connected=connected,
        nics_of_host=_count_nics(topology, endpoints),
    )


def _describe_pairs(keys: Ints, begin: Ints, records: Records, num_endpoints: int) -> pl.DataFrame:
    rows = begin[:-1]
    some = len(keys) > 0
    return pl.DataFrame(
        {
            "pair": np.arange(len(keys), dtype=np.uint32),
            "src": (keys // max(num_endpoints, 1)).astype(np.uint32),
            "dst": (keys % max(num_endpoints, 1)).astype(np.uint32),
            "num": np.diff(begin).astype(np.uint32),
            "bytes": np.add.reduceat(records.size, rows) if some else records.size,
            "first_ns": np.minimum.reduceat(records.start, rows) if some else records.start,
            "last_ns": np.maximum.reduceat(records.end, rows) if some else records.end,
        }
    )


def _read_rate(flows: pl.DataFrame) -> int | None:
    """The largest sampling rate that the records name; None where they name none."""
    rate = flows["sampling_rate"].max() if "sampling_rate" in flows.columns else None
    return rate if isinstance(rate, int) else None


def _find_quantum(sizes: Ints, rate: int | None) -> float:
    """What sampled sizes are multiples of: packets times the sampling rate; 0 where sizes were counted in full.

    Tensors have round sizes too; only chance spreads one size over many multiples side by side.
    """
    if not len(sizes) or rate == 1:
        return 0.0
    some = sizes[:: max(1, len(sizes) // 4096)]
    common = int(np.gcd.reduce(some))
    if common <= _LARGEST_PACKET:
        return 0.0
    times, count = np.unique(some // common, return_counts=True)
    apart = np.diff(times, prepend=-np.inf, append=np.inf)
    beside = np.minimum(apart[:-1], apart[1:]) <= _CHANCE * np.sqrt(times)
    spread = len(times) >= _MANY_SIZES and count[beside].sum() > 0.5 * len(some)
    return float(common) if rate is not None or spread else 0.0


def find_resolution(times: Ints) -> int:
    """The coarsest of a second, 100, 10 and 1 ms, and a microsecond that all times are multiples of."""
    if not len(times):
        return 1
    some = times[:: max(1, len(times) // 4096)]
    for unit in (10**9, 10**8, 10**7, 10**6, 10**3):
        if not np.any(some % unit):
            return unit
    return 1


def _count_nics(topology: pl.DataFrame | None, endpoints: pl.DataFrame) -> dict[int, int]:
    if topology is None:
        return {}
    counted = topology.unique("address").group_by("host").len()
    hosts = endpoints.select("host", "host_id").unique()
    return {int(h): int(n) for h, n in hosts.join(counted, on="host").select("host_id", "len").iter_rows()}


def _number_endpoints(addresses: pl.Series, topology: pl.DataFrame | None, notes: list[str]) -> pl.DataFrame:
    endpoints = addresses.to_frame("address").with_row_index("endpoint")
    if topology is None:
        endpoints = endpoints.with_columns(
            host=pl.col("address"), rail=pl.lit(None, pl.Int32), switch=pl.lit(None, pl.String), known=pl.lit(False)
        )
    else:
        unique = topology.unique("address", keep="first", maintain_order=True)
        if unique.height < topology.height:
            notes.append(f"topology: {topology.height - unique.height:,} addresses appear twice; the first row counts")
        endpoints = endpoints.join(
            unique.with_columns(known=pl.lit(True)), on="address", how="left", maintain_order="left"
        )
        unknown = endpoints["known"].null_count()
        if unknown:
            notes.append(f"topology: {unknown:,} of {endpoints.height:,} endpoints are missing; each counts as a host")
        endpoints = endpoints.with_columns(
            pl.coalesce("host", "address").alias("host"), pl.col("known").fill_null(False)
        )
    hosts = endpoints.select(pl.col("host").unique(maintain_order=True)).with_row_index("host_id")
    return endpoints.join(hosts, on="host", how="left", maintain_order="left")
