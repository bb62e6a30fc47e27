"""Records: flow records in order of pair and start, with their addresses, pairs and connections as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.collect.tables.second_exporters import connection_names, find_second_exporters
from prism.collect.tables.summary import endpoints_of
from prism.observe import levels
from prism.observe.traffic.numbering import group_values, number_keys
from prism.observe.traffic.threads import do_each

Ints = NDArray[np.int64]

_MANY_SIZES = levels.MIN_STATISTICS  # that chance makes of one
_CHANCE = levels.SIGMAS_UNLIKELY  # deviations
_LARGEST_PACKET = 9216  # a jumbo frame; sizes that are all multiples of more were estimated from samples
_RDMA_PORT = 4791  # of RoCE, by its standard, whichever way it goes
_MIN_PER_CONNECTION = levels.RATIO_LONGER  # records; long timeouts leave two or three of a connection
_MANY_KEYS, _PARTS = 500_000, 4  # more are numbered in so many parts


EXACT_SIZE = levels.ONE_PER_MILLE
"""Relative difference of two counts of the same bytes."""
_SAMPLED, _MOST_SIZES = levels.MAX_RECORDS, levels.SAMPLED_SIZES  # records and sizes of messages that are examined
_FREQUENT = levels.THREE_PER_MILLE  # share of the records of one size


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The columns of all records, pair by pair, those of a pair in order of start."""

    pair: Ints
    connection: Ints
    start: Ints
    end: Ints
    size: Ints
    begun: Ints | None = None  # bytes of a transfer before it waited, 0 where it did not; None where none did

    def take(self, rows: Ints) -> Records:
        """Some of the records."""
        return Records(
            begun=None if self.begun is None else self.begun[rows],
            pair=self.pair[rows],
            connection=self.connection[rows],
            start=self.start[rows],
            end=self.end[rows],
            size=self.size[rows],
        )


def keep_messages(flows: pl.DataFrame, notes: list[str]) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """The flows that carry bytes from one endpoint to another, and their ends as categories; notes count the rest."""
    kind = pl.Categorical(pl.Categories.random())  # not the common ones, which grow for as long as a process lives
    src, dst = do_each(lambda column: flows[column].cast(kind), ("src", "dst"))
    other = src.to_physical() != dst.to_physical()
    control = _mark_control(flows, src, dst)
    kept = other & (flows["bytes"] > 0) & ~control
    if kept.all():
        return flows, src, dst
    if not other.all():
        notes.append(f"{int((~other).sum()):,} flows from an endpoint to itself were left out")
    if control.any():
        notes.append(f"{int(control.sum()):,} small flows that are not RDMA, such as heartbeats, were left out")
    if int((other & ~kept & ~control).sum()):
        notes.append(f"{int((other & ~kept & ~control).sum()):,} flows without bytes were left out")
    return flows.filter(kept), src.filter(kept), dst.filter(kept)


def _mark_control(flows: pl.DataFrame, src: pl.Series, dst: pl.Series) -> pl.Series:
    """Small flows beside RDMA between two that send RDMA: heartbeats and shells, which keep no time with training."""
    nothing = pl.repeat(False, flows.height, eager=True)
    if "dst_port" not in flows.columns:
        return nothing
    rdma = (flows["dst_port"] == _RDMA_PORT).fill_null(value=False)
    small = ~rdma & (flows["bytes"] < levels.SMALL_MESSAGE_BYTES)
    if not rdma.any() or not small.any():
        return nothing
    sends = src.filter(rdma).unique()
    return small & src.is_in(sends.implode()) & dst.is_in(sends.cast(dst.dtype).implode())


def leave_second_exporters(flows: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Flows without what a second exporter reported of the same connection."""
    again = find_second_exporters(flows)
    if not again.height or float(again["bytes"].sum()) < levels.SHARE_SMALL * float(flows["bytes"].sum()):
        return flows
    keys = [*connection_names(flows), "exporter"]
    kept = flows.join(again, on=keys, how="anti", nulls_equal=True, maintain_order="left")
    notes.append(
        f"{flows.height - kept.height:,} flows were exported by a second switch or network interface, and count once"
    )
    return kept


def number_addresses(src: pl.Series, dst: pl.Series) -> tuple[Ints, Ints, pl.Series]:
    """Both ends of each flow, as numbers of addresses in their order, and those addresses."""
    codes = [side.to_physical().to_numpy() for side in (src, dst)]
    num = int(max(code.max(initial=0) for code in codes)) + 1
    used = np.flatnonzero(sum(do_each(lambda code: np.bincount(code, minlength=num), codes)))
    names = pl.Series(used.astype(np.uint32)).cat.to(src.dtype).cast(pl.String)
    place = np.zeros(num, np.int64)
    place[used[names.arg_sort().to_numpy()]] = np.arange(len(used))
    ends = do_each(lambda code: place[code], codes)
    return ends[0], ends[1], endpoints_of(pl.DataFrame({"src": names, "dst": names}))


def number_pairs(pair_key: Ints) -> tuple[Ints, Ints]:
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


def number_connections(flows: pl.DataFrame, pair: Ints, num_pairs: int) -> tuple[Ints, bool]:
    """Numbers of connections, and whether these are distinguished; else they are those of the pairs."""
    named = next((c for c in ("qp", "src_port") if c in flows.columns and flows[c].null_count() == 0), None)
    if named is None or not num_pairs:
        return pair, False
    connection, found = _number_all(pair * (1 << 32) + flows[named].cast(pl.Int64).to_numpy() % (1 << 32))
    if len(connection) < _MIN_PER_CONNECTION * len(found):  # Ports that are new for every record say nothing.
        return pair, False
    return connection, True


def number_sockets(flows: pl.DataFrame, pair: Ints) -> Ints | None:
    """Numbers of pairs with all their ports, in the order of `order_records`; None where the table has no ports."""
    named = [c for c in ("qp", "src_port", "dst_port") if c in flows.columns and flows[c].null_count() < flows.height]
    if not named:
        return None
    keys = flows.select(pl.struct(pl.Series("pair", pair), *named).hash()).to_series()
    numbers = keys.rank("dense").to_numpy().astype(np.int64) - 1
    return numbers[np.lexsort((flows["start_ns"].to_numpy(), pair))]


def _list_ends(flows: pl.DataFrame) -> Ints:
    """When flows end; when they start, where an exporter gave no end."""
    ends = flows["end_ns"]
    return (ends if not ends.null_count() else flows.select(pl.coalesce("end_ns", "start_ns")).to_series()).to_numpy()


def order_records(flows: pl.DataFrame, pair: Ints, connection: Ints, num_pairs: int) -> Records:
    """The records pair by pair, those of a pair in order of start."""
    columns = [flows["start_ns"].to_numpy(), _list_ends(flows), flows["bytes"].to_numpy(), connection]
    (start, begin), *others = do_each(lambda column: group_values(column, pair, num_pairs), columns)
    turns = start[1:] < start[:-1]
    turns[begin[1:-1] - 1] = False  # where the next pair begins
    if turns.any():
        order = np.argsort(columns[0], kind="stable")
        pair, columns = pair[order], [column[order] for column in columns]
        (start, begin), *others = do_each(lambda column: group_values(column, pair, num_pairs), columns)
    (end, _), (size, _), (ordered, _) = others
    number = np.repeat(np.arange(num_pairs), np.diff(begin))
    # Some exporters mix the two up; a transfer does not end before it starts.
    return Records(pair=number, connection=ordered, start=start, end=np.maximum(start, end), size=size)


def read_rate(flows: pl.DataFrame) -> int | None:
    """The largest sampling rate that the records name; None where they name none."""
    rate = flows["sampling_rate"].max() if "sampling_rate" in flows.columns else None
    return rate if isinstance(rate, int) else None


def measure_samples(flows: pl.DataFrame) -> float:
    """Bytes that a sampled packet stands for, where nearly all counts of packets are multiples of a rate; else 0.

    An exporter that scales multiplies the packets that it saw; only records that a timeout cut may hold a part of one.
    """
    if "packets" not in flows.columns or flows["packets"].null_count():
        return 0.0
    some = flows["packets"].to_numpy()[:: max(1, flows.height // levels.MAX_RECORDS)].astype(np.int64)
    several = some[: len(some) // _MANY_SIZES * _MANY_SIZES].reshape(-1, _MANY_SIZES)
    found, count = np.unique(np.gcd.reduce(several, axis=1), return_counts=True)
    rate = int(found[count.argmax()]) if len(found) else 1
    if rate < _MANY_SIZES or np.mean(some % rate == 0) < levels.SHARE_NEARLY_ALL:
        return 0.0
    return rate * float(flows["bytes"].sum()) / float(flows["packets"].sum())


def find_quantum(sizes: Ints, rate: int | None) -> float:
    """Bytes that a sampled packet stands for, by what sizes are multiples of; 0 where sizes were counted in full.

    Tensors have round sizes too; only chance spreads one size over many multiples side by side. Where a rate is named
    and sizes are not multiplied by it, they are sums of packets.
    """
    if not len(sizes) or rate == 1:
        return 0.0
    some = sizes[:: max(1, len(sizes) // 4096)]
    scale = rate if rate and not np.any(some % rate) else 1
    common = int(np.gcd.reduce(some))
    if common <= max(_LARGEST_PACKET, levels.ONE_PERCENT * _LARGEST_PACKET * scale):
        return scale * _measure_packet(some // scale) if rate is not None else 0.0
    times, count = np.unique(some // common, return_counts=True)
    apart = np.diff(times, prepend=-np.inf, append=np.inf)
    beside = np.minimum(apart[:-1], apart[1:]) <= _CHANCE * np.sqrt(times)
    spread = len(times) >= _MANY_SIZES and count[beside].sum() > 0.5 * len(some)
    return float(common) if rate is not None or spread else 0.0


def _measure_packet(sizes: Ints) -> float:
    """The usual difference of sizes that are a packet apart; headers differ by less. 0 where none are."""
    sizes = np.unique(sizes)
    apart = sizes[1:] - sizes[:-1]
    packets = apart[(apart > levels.ONE_PERCENT * _LARGEST_PACKET) & (apart <= _LARGEST_PACKET)]
    return float(np.median(packets)) if len(packets) > levels.SHARE_SMALL * len(apart) else 0.0


def find_resolution(times: Ints) -> int:
    """The coarsest of a second, 100, 10 and 1 ms, and a microsecond that all times are multiples of."""
    if not len(times):
        return 1
    some = times[:: max(1, len(times) // 4096)]
    for unit in (10**9, 10**8, 10**7, 10**6, 10**3):
        if not np.any(some % unit):
            return unit
    return 1


def list_frequent_sizes(size: Ints, share: float = _FREQUENT) -> tuple[Ints, Ints]:
    """The sizes that at least a `share` of records have, the smallest first, and the rows that were examined."""
    # At random: every so many records of a job may all be of one size.
    rows = np.random.default_rng(0).integers(0, max(len(size), 1), min(len(size), _SAMPLED))
    found, count = np.unique(size[rows], return_counts=True)
    often = np.flatnonzero(count >= max(3, share * len(rows)))
    return np.sort(found[often[np.argsort(-count[often], kind="stable")][:_MOST_SIZES]]), rows
