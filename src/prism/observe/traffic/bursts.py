"""Bursts: all that a connection sends in a step, found by counting its bytes.

A capture, or an exporter whose idle timeout is about as long as the pauses inside a transfer, cuts the same transfer
at another place each time, so single records do not show where a step ends. But a connection sends equally many bytes
in every step, and is silent after the last of them: the bytes that it has sent in all when such silences begin are
that many bytes apart, however long the steps and the silences inside them are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.traffic.numbering import bound_groups
from prism.observe.traffic.records import EXACT_SIZE

Ints = NDArray[np.int64]

_HEAVY = levels.SHARE_SMALL  # of the bytes of the heaviest connection: lighter ones do not send in every step
_LEAST = levels.MIN_STATISTICS  # bursts of a connection
_REGULAR = levels.SHARE_LARGE  # share of the bursts with as many messages
_WHOLE = levels.SHARE_LARGE  # of the bytes of a connection that are sent in steps: it may share weights first
_MOST_EDGES = levels.SAMPLED_MESSAGES  # silences of a connection, the longest ones
_MOST_PARTS = levels.SAMPLED_STREAMS  # silences of a step
_TRIED = levels.SAMPLED_STREAMS  # sizes of a step
_AS_STEADY = (levels.RATIO_FAR, levels.SHARE_NEGLIGIBLE)  # times the jitter of the steadiest, and a share of a step
_MOST = 0.7  # quantile of the differences between steps: evaluations and checkpoints lengthen fewer of them
_NEARLY = levels.SHARE_NEARLY_ALL  # of the bursts of the chain with most of them
_REST = levels.ONE_PERCENT  # of what a step sends: what is left at the ends, such as a barrier, is no burst
_MOSTLY = levels.SHARE_LARGE  # of the connections that agree on several steps agree on one
_ALIKE = levels.SHARE_SMALL  # by which the steps of the connections of a job differ in length


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """One message for each burst, in the heaviest stream of its connection, and these streams."""

    messages: pl.DataFrame
    streams: pl.DataFrame
    steps: pl.DataFrame  # index start_ns end_ns
    regular: bool  # whether most hold as many messages, so that these are not cut at random


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Silences of a connection that are equally many bytes apart; `last` are the messages before them."""

    last: Ints
    begin_ns: Ints
    end_ns: Ints
    size: int
    steps: int  # from the first to the last one, with those that are missing
    in_groups: bool  # whether several may follow each other in a step, such as micro-batches

    @property
    def period_ns(self) -> float:
        """The mean time from one to the next after the first: half of the steps may be far longer than the others."""
        return float(self.begin_ns[-1] - self.begin_ns[1]) / max(self.steps - 1, 1)

    @property
    def jitter(self) -> float:
        """By how much a step differs from the next, as a share of a usual one; a pause after a few makes no difference.

        Parts that may come in groups pause after each group: then all differences count.
        """
        apart = np.minimum(np.abs(np.diff(self.begin_ns, 2)), round(self.period_ns))
        return float(np.mean(apart) if self.in_groups else np.quantile(apart, _MOST)) / max(self.period_ns, 1.0)

    def find_nearest(self, other: Chain) -> Ints:
        """For each silence of another connection the one of this that is over next after it began."""
        at: Ints = np.clip(np.searchsorted(self.end_ns, other.begin_ns, side="right"), 0, len(self.end_ns) - 1)
        return at

    def matches(self, other: Chain) -> float:
        """The share of its silences that are those of another connection, too."""
        at = other.find_nearest(self)
        both = np.minimum(self.end_ns, other.end_ns[at]) - np.maximum(self.begin_ns, other.begin_ns[at])
        any_ns = np.maximum(self.end_ns, other.end_ns[at]) - np.minimum(self.begin_ns, other.begin_ns[at])
        return float(np.mean(both.clip(0) / any_ns.clip(1)))


def join_bursts(messages: pl.DataFrame, streams: pl.DataFrame) -> Bursts | None:
    """The messages of one job by bursts; None where no number of bytes repeats on most of its connections.

    `messages` are pair stream start_ns end_ns bytes, `streams` are stream connection bytes num.
    """
    load = pl.col("bytes") * pl.col("num")
    total = load.sum().over("connection")
    heavy = streams.filter(total >= _HEAVY * total.max()).sort(load, descending=True)
    owner = heavy.select("stream", "connection", "kind", pl.col("stream").first().over("connection").alias("head"))
    joined = messages.join(owner, on="stream").sort("connection", "start_ns")
    parts = joined.partition_by("connection", maintain_order=True)
    found: list[pl.DataFrame] = []
    begin, end = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for run in _part_runs(parts):
        chains = agree([list_chains(part) for part in run])
        marks = find_marks([chain for chain in chains if chain is not None])
        begin, end = np.append(begin, marks[:-1]), np.append(end, marks[1:])
        found += [_cut(part, chain) for part, chain in zip(run, chains, strict=True) if chain is not None]
    if len(found) < max(levels.MIN_TWO, levels.SHARE_HALF * len(parts)):
        return None
    bursts = _continue_heads(found)
    whole = bursts.group_by("head", maintain_order=True).agg(
        pl.col("bytes").median().alias("usual"), pl.len().cast(pl.Int64).alias("times"),
        (pl.col("end_ns") - pl.col("start_ns")).mean().alias("took"),
    )  # fmt: skip
    heads = streams.join(whole, left_on="stream", right_on="head", maintain_order="left").with_columns(
        bytes="usual", num="times", duration_ns="took", per_step=pl.lit(1.0), presence=pl.lit(1.0),
        role=pl.when(pl.col("kind") == "pp").then(pl.lit("pp")).otherwise(pl.lit("oneway")),
    )  # fmt: skip
    return Bursts(
        messages=bursts.select(messages.columns).sort("pair", "start_ns"),
        streams=heads.select(streams.columns).sort("stream"),
        steps=pl.DataFrame({"index": np.arange(len(begin), dtype=np.int32), "start_ns": begin, "end_ns": end}),
        regular=bool(
            bursts.select((pl.col("parts") == pl.col("parts").median().over("head")).mean()).item() > _REGULAR
        ),
    )


def find_marks(chains: list[Chain]) -> Ints:
    """When each step ends: when most of the connections fall silent that are silent at that moment."""
    if not chains:
        return np.zeros(0, np.int64)
    most = max(len(chain.last) for chain in chains)
    whole = [chain for chain in chains if len(chain.last) >= _NEARLY * most]
    first = max(whole, key=lambda chain: sum(map(chain.matches, chains)))
    nearest = [(chain, chain.find_nearest(first)) for chain in chains]
    begin, end = (np.array([getattr(c, name)[at] for c, at in nearest]) for name in ("begin_ns", "end_ns"))
    silent = (begin < first.end_ns) & (end > first.begin_ns)
    medians = [int(np.median(at[own])) if own.any() else 0 for at, own in zip(begin.T, silent.T, strict=True)]
    return np.where(silent.any(axis=0), medians, first.begin_ns)


def _part_runs(connections: list[pl.DataFrame]) -> list[list[pl.DataFrame]]:
    """Connections that are used at the same time: a job that is started again makes new ones."""
    runs: list[list[pl.DataFrame]] = []
    over_ns = -1
    for messages in sorted(connections, key=lambda messages: messages["start_ns"][0]):
        if messages["start_ns"][0] > over_ns:
            runs.append([])
        runs[-1].append(messages)
        over_ns = max(over_ns, int(messages["end_ns"].max()))  # type: ignore[arg-type]
    return runs


def _continue_heads(connections: list[pl.DataFrame]) -> pl.DataFrame:
    """Bursts of all connections; one that follows another of its pair, such as after a restart, continues it."""
    latest: dict[int, tuple[int, int]] = {}
    joined = []
    for bursts in sorted(connections, key=lambda bursts: bursts["start_ns"][0]):
        pair, stream = bursts["pair"][0], bursts["stream"][0]
        over_ns, head = latest.get(pair, (2**62, stream))
        stream = head if over_ns < bursts["start_ns"][0] else stream
        latest[pair] = (bursts["end_ns"][-1], stream)
        joined.append(
            bursts.with_columns(
                stream=pl.lit(stream, bursts["stream"].dtype), head=pl.lit(stream, bursts["head"].dtype)
            )
        )
    return pl.concat(joined)


def _cut(messages: pl.DataFrame, chain: Chain) -> pl.DataFrame:
    """The messages of a connection by bursts, each from one silence to the next."""
    number = np.searchsorted(chain.last, np.arange(messages.height), side="left")
    bursts = messages.group_by(pl.Series("burst", number), maintain_order=True).agg(
        pl.all().exclude("bytes", "end_ns", "stream").first(),
        pl.col("end_ns").max(), pl.col("bytes").sum(), pl.col("head").first().alias("stream"), parts=pl.len(),
    )  # fmt: skip
    return bursts.filter(pl.col("bytes") > _REST * chain.size)


def agree(chains: Sequence[list[Chain]]) -> list[Chain | None]:
    """The chain of each connection whose steps are as long as those of most, at the moment that most are silent.

    A chain of parts of a step, such as micro-batches, jitters more: of those that are about as steady as the steadiest
    one, the shortest steps count.
    """
    steady: list[list[Chain]] = []
    for own in chains:
        # The time of several steps varies less, as a share of it.
        limit = _AS_STEADY[0] * min((c.jitter * c.period_ns**0.5 for c in own), default=0.0)
        steady.append([c for c in own if c.jitter <= limit / c.period_ns**0.5 + _AS_STEADY[1]])
    # Parts of a step, such as micro-batches, are seen on some connections only; several steps on all that show one.
    shortest = sorted(min(c.period_ns for c in own) for own in steady if own)
    similar = [[[c for c in own if abs(c.period_ns / period - 1) <= _ALIKE] for own in steady] for period in shortest]
    num = [sum(map(bool, like)) for like in similar]
    most = int(np.argmax(num)) if num else 0
    like = next((similar[i] for i in range(most) if num[i] >= _MOSTLY * num[most] and _is_multiple(shortest, most, i)),
                similar[most] if similar else [])  # fmt: skip
    like = [[c for c in own if len(c.last) >= _NEARLY * max(len(c.last) for c in own)] for own in like]
    fewest = min((own for own in like if own), key=len, default=[])
    if not fewest:
        return [None] * len(chains)
    first = max(fewest, key=lambda one: sum(max(map(one.matches, own), default=0.0) for own in like))
    best = [max(own, key=first.matches, default=None) for own in like]
    least = levels.SHARE_HALF * float(np.median([first.matches(c) for c in best if c is not None]))
    return [c if c is not None and first.matches(c) >= least else None for c in best]


def _is_multiple(period_ns: list[float], of: int, other: int) -> bool:
    """Whether one period is two or more of another."""
    times = period_ns[of] / period_ns[other]
    return times > levels.RATIO_LONGER and abs(times / round(times) - 1) <= _ALIKE


def list_chains(messages: pl.DataFrame) -> list[Chain]:
    """The chains of a connection that hold most of its bytes, of every size of a step that occurs."""
    # A few bytes, such as acknowledgements, do not end a silence.
    size = messages["bytes"].to_numpy()
    large = np.flatnonzero(size >= levels.SMALL_MESSAGE_BYTES)
    if not len(large):
        return []
    start, reach = messages["start_ns"].to_numpy()[large], np.maximum.accumulate(messages["end_ns"].to_numpy()[large])
    # The first message follows a silence, too, and what follows the last one is unknown.
    last, begin = np.append(-1, large), np.append(start[0], reach)
    silent = np.append(start, reach[-1]) - begin
    silent[-1] = silent[:-1].max()
    edge = np.flatnonzero(silent > levels.CLOCK_TOLERANCE_NS)
    edge = np.append(0, np.sort(edge[np.argsort(-silent[edge], kind="stable")[:_MOST_EDGES]]))
    last, begin, silent = last[edge], begin[edge], silent[edge]
    sent = np.append(0, np.cumsum(size))[last + 1]
    apart = np.concatenate([sent[lag:] - sent[:-lag] for lag in range(1, min(_MOST_PARTS, len(sent)))] or [sent[:0]])
    apart = np.sort(apart[apart >= levels.SMALL_MESSAGE_BYTES])
    if not len(apart):
        return []
    klass: Ints = np.cumsum(np.diff(apart, prepend=apart[0]) > EXACT_SIZE * apart)
    count = np.bincount(klass)
    often = np.argsort(-count, kind="stable")[:_TRIED]
    middle = bound_groups(klass, len(count), np.arange(len(klass)))
    in_groups, found = bool((messages["kind"] == "pp").any()), []
    for number in often[count[often] >= _LEAST]:
        step = int(apart[(middle[0][number] + middle[1][number]) // 2])
        for chain in _follow(sent, silent, step):
            ends, steps = begin[chain] + silent[chain], round((sent[chain[-1]] - sent[chain[0]]) / step)
            found.append(Chain(last=last[chain], begin_ns=begin[chain], end_ns=ends, size=step, steps=steps,
                               in_groups=in_groups))  # fmt: skip
    return found


def _follow(sent: Ints, silent: Ints, step: int) -> list[Ints]:
    """The chains of silences that are a step apart, but for a few that are missing, and hold most of what was sent."""
    following = _find_following(sent, silent, step, round(EXACT_SIZE * step) + levels.SMALL_MESSAGE_BYTES)
    chains = []
    for head in np.setdiff1d(np.arange(len(sent)), following):
        chain = [int(head)]
        while (after := int(following[chain[-1]])) >= 0:
            chain.append(after)
        held = int(sent[chain[-1]] - sent[chain[0]])
        if len(chain) > _LEAST and held >= _WHOLE * sent[-1] and (len(chain) - 1) * step >= _WHOLE * held:
            chains.append(np.array(chain))
    return chains


@kernel
def _find_following(sent: Ints, silent: Ints, step: int, slack: int) -> Ints:
    """For each silence the longest one that is a step later, or two or three where none is; -1 for none."""
    following = np.full(len(sent), -1, np.int64)
    for i in range(len(sent)):
        for steps in range(1, 4):
            at = np.searchsorted(sent, sent[i] + steps * step - slack)
            while at < len(sent) and sent[at] <= sent[i] + steps * step + slack:
                if at > i and (following[i] < 0 or silent[at] > silent[following[i]]):
                    following[i] = at
                at += 1
            if following[i] >= 0:
                break
    return following
