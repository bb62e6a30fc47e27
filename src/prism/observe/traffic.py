"""Flows made ready for analysis: endpoints, pairs and connections as numbers, sizes in classes, oddities counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.numbering import classify_sizes, group_by_number, number_keys
from prism.records.flow_summary import endpoints_of

Ints = NDArray[np.int64]

SIZE_TOLERANCE = 0.02
"""Messages of one connection whose sizes differ by less are of one size: headers and retransmissions add a few in ten
thousand."""
_LARGEST_PACKET = 9216  # a jumbo frame; sizes that are all multiples of more were estimated from samples
_MANY_CONNECTIONS = 24.0  # per pair; ports that are new for every record say nothing
_MIN_PER_CONNECTION = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One observation: messages between numbered endpoints.

    `messages`: pair start_ns end_ns bytes size_class voice, ordered by pair and start; `pairs`: pair src dst num bytes
    first_ns last_ns; `endpoints`: endpoint address host_id host rail switch known. A voice is what one pair sends over
    one connection in messages of one size; `size_class` numbers the voices of a pair, `voice` those of all pairs.
    `begin[p]:begin[p + 1]` are the rows of pair p; `voices`: voice pair size_class connection.
    """

    messages: pl.DataFrame
    pairs: pl.DataFrame
    endpoints: pl.DataFrame
    notes: tuple[str, ...] = ()
    voices: pl.DataFrame = field(default_factory=pl.DataFrame, repr=False)
    begin: Ints = field(default_factory=lambda: np.zeros(1, np.int64), repr=False)
    resolution_ns: int = 1  # times are multiples of this
    connected: bool = False  # whether connections (queue pairs or ports) are told apart
    nics_of_host: dict[int, int] = field(default_factory=dict)  # NICs in the topology, by host_id

    def rows_of(self, pairs: Ints) -> Ints:
        """The rows of some pairs' messages, pair by pair."""
        first, count = self.begin[pairs], self.begin[pairs + 1] - self.begin[pairs]
        total = int(count.sum())
        offset = np.repeat(np.cumsum(count) - count, count)
        rows: Ints = np.arange(total, dtype=np.int64) - offset + np.repeat(first, count)
        return rows


def prepare_traffic(flows: pl.DataFrame, topology: pl.DataFrame | None = None) -> Traffic:
    """Number the endpoints and pairs of FLOWS and clean the records; without a topology every endpoint is a host."""
    notes: list[str] = []
    total = flows.height
    flows = flows.filter(pl.col("src") != pl.col("dst"))
    if flows.height < total:
        notes.append(f"{total - flows.height:,} flows from an endpoint to itself were left out")
    carrying = flows.filter(pl.col("bytes") > 0)
    if carrying.height < flows.height:
        notes.append(f"{flows.height - carrying.height:,} flows without bytes were left out")
        flows = carrying
    endpoints = _number_endpoints(endpoints_of(flows), topology, notes)
    names = pl.Enum(endpoints["address"])
    src, dst = (flows[c].cast(names).to_physical().to_numpy().astype(np.int64) for c in ("src", "dst"))
    start = flows["start_ns"].to_numpy()
    end = flows.select(pl.coalesce("end_ns", "start_ns"))["end_ns"].to_numpy()
    end = np.maximum(end, start)  # Some exporters mix the two up; a transfer does not end before it starts.
    size = flows["bytes"].to_numpy()
    pair_key = src * max(endpoints.height, 1) + dst
    pair, connection, connected = _number_connections(flows, pair_key)
    if len(start) and np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        pair, connection, start, end, size = (c[order] for c in (pair, connection, start, end, size))
    records = Records(pair=pair, connection=connection, start=start, end=end, size=size)
    records, repeated = _drop_repeated(records)
    if repeated:
        notes.append(f"{repeated:,} repeated flows were left out")
    grouped, begin = group_by_number(records.connection, int(connection.max(initial=-1)) + 1)
    classes = np.empty(len(grouped), np.int64)
    classes[grouped] = classify_sizes(records.size[grouped], begin, SIZE_TOLERANCE, _find_quantum(records.size))
    keys = np.sort(number_keys(pair_key)[1])
    return _assemble(records, classes, keys, endpoints, tuple(notes), topology, connected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The columns of all records, in order of start."""

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


def _assemble(
    records: Records, classes: Ints, keys: Ints, endpoints: pl.DataFrame, notes: tuple[str, ...],
    topology: pl.DataFrame | None, connected: bool,
) -> Traffic:  # fmt: skip
    """Messages by pair and start, with the voices that they belong to."""
    num_pairs = len(keys)
    by_pair, pair_begin = group_by_number(records.pair, num_pairs)
    number, voice_keys = number_keys((records.connection * 32 + classes)[by_pair])
    records = records.take(by_pair)
    pair = records.pair
    voice_pair = np.zeros(len(voice_keys), np.int64)
    voice_pair[number] = pair
    first_voice = np.searchsorted(voice_pair, np.arange(num_pairs + 1))
    messages = pl.DataFrame(
        {
            "pair": pair.astype(np.uint32),
            "start_ns": records.start,
            "end_ns": records.end,
            "bytes": records.size,
            "size_class": (number - first_voice[pair]).astype(np.uint32),
            "voice": number.astype(np.uint32),
        }
    )
    voices = pl.DataFrame(
        {
            "voice": np.arange(len(voice_keys), dtype=np.uint32),
            "pair": voice_pair.astype(np.uint32),
            "size_class": (np.arange(len(voice_keys)) - first_voice[voice_pair]).astype(np.uint32),
            "connection": voice_keys // 32,
        }
    )
    return Traffic(
        messages=messages,
        pairs=_describe_pairs(keys, pair_begin, records, endpoints.height),
        endpoints=endpoints,
        notes=notes,
        voices=voices,
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


def _number_connections(flows: pl.DataFrame, pair_key: Ints) -> tuple[Ints, Ints, bool]:
    """Numbers of pairs (in order of their keys) and of connections, and whether the latter are told apart."""
    number, keys = number_keys(pair_key)
    place = np.argsort(np.argsort(keys))
    pair = place[number] if len(keys) else number
    named = next((c for c in ("qp", "src_port") if c in flows.columns and flows[c].null_count() == 0), None)
    if named is None or not len(keys):
        return pair, pair, False
    connection, found = number_keys(pair * (1 << 32) + flows[named].cast(pl.Int64).to_numpy() % (1 << 32))
    if len(found) > _MANY_CONNECTIONS * len(keys) or len(connection) < _MIN_PER_CONNECTION * len(found):
        return pair, pair, False
    return pair, connection, True


def _drop_repeated(records: Records) -> tuple[Records, int]:
    """The records without those that equal another in every way, and how many those were."""
    grouped, _ = group_by_number(records.connection, int(records.connection.max(initial=-1)) + 1)
    columns = (records.connection, records.start, records.end, records.size)
    same = np.ones(max(len(grouped) - 1, 0), np.bool_)
    for column in columns:
        ordered = column[grouped]
        same &= ordered[1:] == ordered[:-1]
    if not same.any():
        return records, 0
    kept = np.ones(len(grouped), np.bool_)
    kept[grouped[1:][same]] = False
    return records.take(np.flatnonzero(kept)), int(same.sum())


def _find_quantum(sizes: Ints) -> float:
    """What sampled sizes are multiples of: packets times the sampling rate; 0 where sizes were counted in full."""
    if not len(sizes):
        return 0.0
    common = int(np.gcd.reduce(sizes[:: max(1, len(sizes) // 4096)]))
    return float(common) if common > _LARGEST_PACKET else 0.0


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
