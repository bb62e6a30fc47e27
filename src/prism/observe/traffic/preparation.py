"""Preparation: flows become traffic; anomalies are counted, torn transfers joined and sizes put into classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.traffic.exports import find_active_timeout, mark_cut
from prism.observe.traffic.merged_records import find_merged, place_messages
from prism.observe.traffic.numbering import (
    classify_sizes,
    find_runs,
    group_by_number,
    mark_exported_twice,
    mark_overlapping,
    mark_repeated,
    number_again,
    number_keys,
    number_parallel,
)
from prism.observe.traffic.records import (
    EXACT_SIZE,
    Records,
    find_quantum,
    find_resolution,
    keep_messages,
    leave_second_exporters,
    measure_samples,
    number_addresses,
    number_connections,
    number_pairs,
    number_sockets,
    order_records,
    read_rate,
)
from prism.observe.traffic.table import Traffic
from prism.observe.traffic.torn_transfers import find_torn

Ints = NDArray[np.int64]

SIZE_TOLERANCE = 0.02
"""Messages of one connection whose sizes differ by less are of one size: headers and retransmissions add a few in ten
thousand."""
WRITE_BYTES = 1 << 20  # more than NCCL posts at once: a slot of its buffer, 512 KiB
_SECOND_NS = 10**9  # the resolution of times that are whole seconds
_SEEN_TWICE = levels.THREE_PER_MILLE  # by which two exporters' counts of one message may differ
_CLOCKS_APART_NS = levels.CLOCK_TOLERANCE_NS  # by which two exporters' clocks may differ
_MOSTLY_TWICE = levels.SHARE_MINOR  # share of a connection's records that repeat another, where two exporters see it


def prepare_traffic(flows: pl.DataFrame, topology: pl.DataFrame | None = None) -> Traffic:
    """Number the endpoints and pairs of FLOWS and clean the records; without a topology every endpoint is a host."""
    notes: list[str] = []
    flows, *ends = keep_messages(leave_second_exporters(flows, notes), notes)
    src, dst, addresses = number_addresses(*ends)
    endpoints = _number_endpoints(addresses, topology, notes)
    pair, keys = number_pairs(src * max(endpoints.height, 1) + dst)
    del src, dst, ends
    connection, connected = number_connections(flows, pair, len(keys))
    num_connections = int(connection.max(initial=-1)) + 1
    first = np.zeros(num_connections, np.int64)  # a flow of each connection
    first[connection] = np.arange(len(connection))
    records = order_records(flows, pair, connection, len(keys))
    resolution_ns = find_resolution(records.start)  # Messages that a record held are placed at times of their own.
    repeated = mark_repeated(records.connection, num_connections, records.start, records.end, records.size)
    if repeated.any():
        records = _leave_repeated(records, int(repeated.sum()), number_sockets(flows, pair), resolution_ns, notes)
    if connected:
        records = _leave_second_exports(_join_writes(records, num_connections, notes), num_connections, notes)
        if resolution_ns < levels.MILLISECOND_NS:  # Coarser times do not separate parts of a message from others.
            records = _join_stripes(records, num_connections, notes)
    quantum = find_quantum(records.size, read_rate(flows)) or measure_samples(flows)
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
    streams = traffic.streams.with_columns(pl.Series("cut", cut), *_list_ports(flows, traffic, first))
    return replace(traffic, resolution_ns=resolution_ns, sample_bytes=quantum, active_ns=active_ns, streams=streams)


def _list_ports(flows: pl.DataFrame, traffic: Traffic, first: Ints) -> list[pl.Series]:
    """The ports at both ends of the connection of each stream, given a flow of it; none where there are none."""
    ports = ("src_port", "dst_port")
    queue_pairs = "qp" in flows.columns and not flows["qp"].null_count()
    if not traffic.connected or queue_pairs or any(c not in flows.columns or flows[c].null_count() for c in ports):
        return []
    return [flows[c][first[traffic.connection_of]].cast(pl.Int64).alias(c) for c in ports]


def _leave_repeated(
    records: Records, num_equal: int, socket: Ints | None, resolution_ns: int, notes: list[str]
) -> Records:
    """The records without those that repeat another: equal in size, times and ports.

    Sums over whole seconds are often equal where connections carry the same, as the records of cloud flow logs do.
    """
    if socket is None and resolution_ns >= _SECOND_NS:
        notes.append(
            f"{num_equal:,} flows equal another in all but their order; without ports they may be connections of their "
            "own, so they count"
        )
        return records
    number = records.pair if socket is None else socket
    repeated = mark_repeated(number, int(number.max()) + 1, records.start, records.end, records.size)
    if repeated.any():
        notes.append(f"{int(repeated.sum()):,} repeated flows were left out")
    return records.take(np.flatnonzero(~repeated))


def _leave_second_exports(records: Records, num_connections: int, notes: list[str]) -> Records:
    """The records without those of a second exporter, of connections of which most was exported twice."""
    columns = (records.connection, num_connections, records.start, records.end, records.size)
    twice = mark_exported_twice(*columns, _SEEN_TWICE, _CLOCKS_APART_NS)
    if not twice.any():
        return records
    again, sent = (np.bincount(records.connection, w, num_connections) for w in (twice, np.ones(len(twice))))
    by_two = (again >= _MOSTLY_TWICE * sent)[records.connection]
    if not (by_two & twice).any():
        return records
    # Two exporters may cut a transfer at different places.
    overlaps = mark_overlapping(records.connection, num_connections, records.start, records.end, twice)
    twice = by_two & (twice | overlaps)
    notes.append(f"{int(twice.sum()):,} flows were exported twice, by the switches at both ends, and count once")
    return records.take(np.flatnonzero(~twice))


def _join_stripes(records: Records, num_connections: int, notes: list[str]) -> Records:
    """The records with what several queue pairs carry of one message as one (NCCL_IB_QPS_PER_CONNECTION).

    Parts of a message are as large and pass at the same moment; connections that nearly always do so are one. Where
    other pairs have the same moments, times are too coarse to tell.
    """
    again = np.zeros(len(records.start), np.bool_)  # begins with the one before of its pair
    again[1:] = (records.pair[1:] == records.pair[:-1]) & (records.start[1:] == records.start[:-1])
    beside = np.flatnonzero(again | np.append(again[1:], False))
    moment = np.cumsum(~again)[beside]
    order = beside[np.lexsort((records.connection[beside], records.end[beside], moment))]
    end, size = records.end[order], records.size[order]
    alike = np.zeros(len(order), np.bool_)
    alike[1:] = (moment[1:] == moment[:-1]) & (end[1:] == end[:-1])
    alike[1:] &= np.abs(size[1:] - size[:-1]) <= EXACT_SIZE * size[1:]
    first = order[np.maximum.accumulate(np.where(alike, 0, np.arange(len(order))))]
    own, leading = records.connection[order], records.connection[first]
    leader = np.arange(num_connections)
    leader[own[alike]] = leading[alike]
    sent, led = (np.bincount(rows, minlength=num_connections) for rows in (records.connection, own[alike]))
    leader = np.where(led >= levels.SHARE_NEARLY_ALL * sent, leader, np.arange(num_connections))
    parts = alike & (leader[own] == leading)
    if not parts.any() or _share_moments(records) > levels.ONE_PERCENT:
        return records
    notes.append(f"{int(parts.sum()):,} records are parts of messages that several queue pairs carry, and were joined")
    whole = records.size.copy()
    np.add.at(whole, first[parts], size[parts])
    kept = np.ones(len(whole), np.bool_)
    kept[order[parts]] = False
    return replace(records, size=whole, connection=leader[records.connection]).take(np.flatnonzero(kept))


def _share_moments(records: Records) -> float:
    """The share of the records of pairs that begin and end when one of another pair does."""
    order = np.lexsort((records.pair, records.end, records.start))
    pair, start, end = (c[order] for c in (records.pair, records.start, records.end))
    same = (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    return float(np.mean(same & (pair[1:] != pair[:-1]))) if len(same) else 0.0


def _join_writes(records: Records, num_connections: int, notes: list[str]) -> Records:
    """The records with the writes of one transfer as one, where an exporter gave one record for each RDMA write."""
    large = 2 * np.count_nonzero(records.size > WRITE_BYTES)  # A count shows the median, but where it is in between.
    if large > len(records.size) or not len(records.size) or float(np.median(records.size)) > WRITE_BYTES:
        return records
    columns = (records.connection, num_connections, records.start, records.end, records.size)
    first = find_runs(*columns, levels.SHARE_SMALL, EXACT_SIZE)
    kept = np.flatnonzero(first == np.arange(len(first)))
    if len(kept) > (1 - levels.SHARE_LARGE) * len(first):
        return records
    notes.append(f"{len(first):,} writes were exported one by one, and were joined to {len(kept):,} transfers")
    end, size = np.zeros_like(records.end), np.zeros_like(records.size)
    np.maximum.at(end, first, records.end)
    np.add.at(size, first, records.size)
    return replace(records, end=end, size=size).take(kept)


def _join_torn(records: Records, notes: list[str]) -> Records:
    """The records with the parts of torn transfers as one; `begun` is what it sent before it waited for the last.

    It is below zero where a slow hop held up all of it.
    """
    torn = find_torn(records.connection, records.start, records.end, records.size)
    if not len(torn.part):
        return records
    notes.append(
        f"{int(torn.ends.sum()):,} transfers that waited were exported in several records each, and were joined"
    )
    end, size, begun = records.end.copy(), records.size.copy(), np.zeros_like(records.size)
    np.add.at(size, torn.head, records.size[torn.part])
    head, tail = torn.head[torn.ends], torn.part[torn.ends]
    end[head], begun[head] = end[tail], np.where(torn.slowed[torn.ends], -1, size[head] - size[tail])
    kept = np.ones(len(end), np.bool_)
    kept[torn.part] = False
    return replace(records, end=end, size=size, begun=begun).take(np.flatnonzero(kept))


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
    """Classes and their connections, where what pairs send side by side is distinguished."""
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
    messages = pl.DataFrame(
        {
            "pair": pair.astype(np.uint32),
            "start_ns": records.start,
            "end_ns": records.end,
            "bytes": records.size,
            "stream": number.astype(np.uint32),
        }
    )
    if records.begun is not None:
        messages = messages.with_columns(pl.Series("begun", records.begun))
    streams = pl.DataFrame(
        {
            "stream": np.arange(len(connection), dtype=np.uint32),
            "pair": stream_pair.astype(np.uint32),
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
