"""Successive jobs: jobs that run one after the other on the same hosts are different jobs.

All pairs of a job fall silent when it ends. What the same endpoints send afterwards is a new job if its messages
have different sizes, or a different rate over new connections; otherwise the job only paused or was restarted.
Queue pairs and sockets end with their process: traffic that continues over them is one job, however slow it becomes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.jobs.grouping import connect
from prism.observe.jobs.step_counts import time_rests_of
from prism.observe.traffic.storage import find_hubs
from prism.observe.traffic.table import Traffic, split_pairs

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessionConfig:
    """Which silences may separate two jobs, and how similar two parts of one job are."""

    most_silences: int = levels.MIN_EVENTS  # of a pair; more are part of how the job works
    longer: float = levels.RATIO_FAR  # times the next shorter gaps of the pair; times as many messages
    frequent: float = levels.SHARE_SMALL  # of the messages of the busiest pair of either end: rarer pairs say nothing
    same_hosts: float = levels.SHARE_HALF  # share of all endpoints, or of a pair's streams, that both stretches have
    same_members: float = levels.SHARE_LARGE  # the same, if one of them is too short to show all members
    same_sizes: float = levels.SHARE_LARGE  # share of the messages whose sizes both stretches have
    same_rate: float = levels.SHARE_NEGLIGIBLE  # relative difference of the time between pauses
    same_pace: float = levels.RATIO_LONGER  # times as many messages in the same time, if no pauses are visible


@dataclass(frozen=True, kw_only=True)
class Stretches:
    """What each pair sends between long silences; `job` numbers the stretches that overlap at common endpoints."""

    pair: Ints
    first_row: Ints
    end_row: Ints
    begin_ns: Ints
    until_ns: Ints
    job: Ints


def part_successive_jobs(traffic: Traffic, config: SuccessionConfig | None = None) -> Traffic:
    """The traffic with a pair for each job that used it; unchanged where no job follows another on its hosts."""
    config = config or SuccessionConfig()
    stretches = _find_stretches(traffic, config)
    if stretches is None:
        return traffic
    jobs, continued = _join_same(traffic, stretches, config)
    cut = np.flatnonzero((stretches.pair[1:] == stretches.pair[:-1]) & (jobs[1:] != jobs[:-1])) + 1
    if not len(cut):
        return traffic
    begun = np.zeros(traffic.messages.height, np.int64)
    begun[_cut_other_pairs(traffic, stretches, cut)] = 1
    begun = np.cumsum(begun)
    parted = split_pairs(traffic, begun - begun[traffic.begin[traffic.messages["pair"].to_numpy()]])
    nodes = _number_nodes(parted, traffic.pairs[stretches.pair[cut]], stretches.begin_ns[cut])
    grown = np.isin(jobs[cut], continued)
    return replace(parted, nodes=nodes, continued=_list_continued(parted, nodes, stretches, cut[grown]))


def _list_continued(traffic: Traffic, nodes: tuple[Ints, Ints], stretches: Stretches, cut: Ints) -> Ints:
    """Numbers of endpoints in the time of a job that continues, with other members, what an earlier one did."""
    first = traffic.pairs["first_ns"].to_numpy()
    begun = np.isin(first, stretches.begin_ns[cut])
    found = np.unique(np.concatenate([side[begun] for side in nodes]))
    return found[found >= traffic.endpoints.height]


def _number_nodes(traffic: Traffic, cut: pl.DataFrame, moments: Ints) -> tuple[Ints, Ints]:
    """For the sender and the receiver of each pair a number of the endpoint within the time of one job."""
    ends = np.concatenate([cut[c].to_numpy() for c in ("src", "dst")]).astype(np.int64)
    begin = np.concatenate([moments, moments])
    # Pairs of one job begin one after the other; of each endpoint the first one begins the job.
    keys = np.unique(np.stack([ends, begin], axis=1), axis=0)
    first = traffic.pairs["first_ns"].to_numpy()
    last = traffic.pairs["last_ns"].to_numpy()
    found = []
    for side in ("src", "dst"):
        own = traffic.pairs[side].to_numpy().astype(np.int64)
        node = own.copy()
        for e in np.intersect1d(own, ends).tolist():
            pairs = np.flatnonzero(own == e)
            middle = (first[pairs] + last[pairs]) // 2
            later = np.searchsorted(keys[keys[:, 0] == e, 1], middle, side="right")
            node[pairs] += traffic.endpoints.height * later
        found.append(node)
    return found[0], found[1]


def _find_stretches(traffic: Traffic, config: SuccessionConfig) -> Stretches | None:
    """Stretches of the frequent pairs; None where no pair has a long silence."""
    start, end = (traffic.messages[c].to_numpy() for c in ("start_ns", "end_ns"))
    after = _list_silences(traffic.begin, start, end, config.most_silences, config.longer)
    if traffic.connected:
        after = after[~_go_on(traffic, after, config.same_hosts)]
    if not len(after):
        return None
    src, dst = (traffic.pairs[c].to_numpy().astype(np.int64) for c in ("src", "dst"))
    hubs = find_hubs(traffic)
    num = np.diff(traffic.begin).astype(np.float64)
    busiest = np.zeros(traffic.endpoints.height)
    kept = ~(np.isin(src, hubs) | np.isin(dst, hubs))
    for side in (src, dst):
        np.maximum.at(busiest, side[kept], num[kept])
    if traffic.given is not None:
        kept &= traffic.given < 0  # who follows whom is known
    kept &= num >= config.frequent * np.maximum(busiest[src], busiest[dst])
    owner = traffic.messages["pair"].to_numpy()
    after = after[kept[owner[after]]]
    if not len(after):
        return None
    first = np.sort(np.concatenate([traffic.begin[:-1][kept], after]))
    pair = owner[first].astype(np.int64)
    last = np.append(first[1:], 0)
    own_end = np.append(pair[1:] != pair[:-1], True)
    last = np.where(own_end, traffic.begin[pair + 1], last)
    until = np.maximum.reduceat(end, np.stack([first, last], axis=1).ravel()[:-1])[::2]
    job = _overlap(np.concatenate([src[pair], dst[pair]]), start[first], until)
    return Stretches(pair=pair, first_row=first, end_row=last, begin_ns=start[first], until_ns=until, job=job)


def _go_on(traffic: Traffic, after: Ints, share: float) -> NDArray[np.bool_]:
    """Whether most streams of a pair continue after a silence: messages of the same sizes over the same connections.

    A later process gets the numbers of an earlier one by chance, but not for most of its connections.
    """
    rows, begin = traffic.by_stream
    first, last = np.sort(rows[begin[:-1]]), np.sort(rows[begin[1:] - 1])
    pair = traffic.messages["pair"].to_numpy()[after]
    since, until = traffic.begin[pair], traffic.begin[pair + 1]
    earlier = np.searchsorted(first, since)  # streams of the pairs before, whose rows come first
    begun, ended = (np.searchsorted(moments, after) - earlier for moments in (first, last))
    later = np.searchsorted(first, until) - earlier - ended
    both: NDArray[np.bool_] = begun - ended > share * np.minimum(begun, later)
    return both


@kernel
def _list_silences(begin: Ints, start: Ints, end: Ints, most: int, longer: float) -> Ints:
    """The messages that end the few silences of a pair which are far longer than all its others."""
    found = np.empty(most * (len(begin) - 1), np.int64)
    num = 0
    gaps, rows = np.zeros(most + 1), np.zeros(most + 1, np.int64)
    for p in range(len(begin) - 1):
        if begin[p + 1] - begin[p] < 4 * most:
            continue
        gaps[:] = 0.0
        reach = end[begin[p]]
        for i in range(begin[p] + 1, begin[p + 1]):
            gap = float(start[i] - reach)
            if gap > gaps[most]:
                k = most
                while k > 0 and gaps[k - 1] < gap:
                    gaps[k], rows[k] = gaps[k - 1], rows[k - 1]
                    k -= 1
                gaps[k], rows[k] = gap, i
            reach = max(reach, end[i])
        for k in range(most - 1, -1, -1):
            if gaps[k] > longer * max(gaps[k + 1], 1.0):
                found[num : num + k + 1] = np.sort(rows[: k + 1])
                num += k + 1
                break
    return found[:num]


def _overlap(ends: Ints, begin: Ints, until: Ints) -> Ints:
    """For each stretch the smallest number of those that it overlaps with at endpoints, directly or not."""
    return connect(len(begin), *_list_overlaps(ends, begin, until))


@kernel
def _list_overlaps(ends: Ints, begin: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Stretches that overlap with the latest one before them at an endpoint, and that one."""
    num, count = len(begin), 0
    later, earlier = np.empty(2 * num, np.int64), np.empty(2 * num, np.int64)
    latest = np.full(ends.max() + 1, -1, np.int64)
    for at in np.argsort(np.concatenate((begin, begin)), kind="mergesort"):
        one, other = at % num, latest[ends[at]]
        if other >= 0 and until[other] > begin[one]:
            later[count], earlier[count] = one, other
            count += 1
        if other < 0 or until[one] > until[other]:
            latest[ends[at]] = one
    return later[:count].copy(), earlier[:count].copy()


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What distinguishes one stretch of a job from another."""

    number: int
    begin_ns: int
    endpoints: Ints
    rests: dict[tuple[int, int], float]  # time between pauses by pair and size class, if visible
    sizes: dict[int, int]  # messages by class of size
    length_ns: int
    repeats: bool  # whether any pair sends a size as often as steps need to show

    @property
    def num(self) -> int:
        """How many messages it sends."""
        return sum(self.sizes.values())


def _join_same(traffic: Traffic, stretches: Stretches, config: SuccessionConfig) -> tuple[Ints, list[int]]:
    """The number of the job of each stretch, where one that only paused is a single job.

    Also the numbers of those that continue with fewer or more hosts: their steps are found apart from the earlier ones.
    """
    jobs = stretches.job.copy()
    described = sorted(
        (_describe(traffic, stretches, number, config) for number in np.unique(jobs).tolist()),
        key=lambda job: job.begin_ns,
    )
    last_at: dict[int, _Job] = {}
    name: dict[int, int] = {}
    continued: list[int] = []
    for job in described:
        before = {last_at[e].number: last_at[e] for e in job.endpoints.tolist() if e in last_at}
        alike = [b for b in before.values() if _is_same(b, job, config)]
        same = [name[b.number] for b in alike if _keeps_members(b, job, config)]
        name[job.number] = min(same, default=job.number)
        if alike and not same:
            continued.append(job.number)
        # Of one job the longest stretch is the most informative.
        longest = max([job, *(b for b in alike if same)], key=lambda one: one.num)
        last_at.update(dict.fromkeys(job.endpoints.tolist(), longest))
    return np.array([name[j] for j in jobs.tolist()], np.int64), continued


def _keeps_members(before: _Job, after: _Job, config: SuccessionConfig) -> bool:
    """Whether the members are the same: a job that grew or shrank has different rings and sizes from then on."""
    fewer, more = sorted((before.num, after.num))
    if not after.repeats:
        return True
    return _share_endpoints(before, after) >= (config.same_members if fewer * config.longer < more else 1.0)


def _share_endpoints(before: _Job, after: _Job) -> float:
    both = np.intersect1d(before.endpoints, after.endpoints)
    return len(both) / len(np.union1d(before.endpoints, after.endpoints))


def _describe(traffic: Traffic, stretches: Stretches, number: int, config: SuccessionConfig) -> _Job:
    own = np.flatnonzero(stretches.job == number)
    rows = np.concatenate(
        [np.arange(a, b) for a, b in zip(stretches.first_row[own], stretches.end_row[own], strict=True)]
    )
    start = traffic.messages["start_ns"].to_numpy()[rows]
    stream = traffic.messages["stream"].to_numpy()[rows]
    # The size is that of all messages of a stream: a part of a step may hold only the smaller ones of a sampled stream.
    mean = np.maximum(traffic.stream_load[stream] / traffic.stream_num[stream], 1.0)
    size = pl.Series("size", np.round(np.log(mean) / 0.1).astype(np.int64))
    sent = traffic.messages.select("pair", "start_ns")[rows].with_columns(size)
    # A restarted job has new connections, but sends equally often between the same two endpoints.
    by_pair = sent.group_by("pair", "size").agg(pl.col("start_ns").sort())
    timed = {(pair, size): time_rests_of(times.to_numpy()) for pair, size, times in zip(*by_pair, strict=True)}
    by_size = sent.group_by("size").len()
    ends = [traffic.pairs[c].to_numpy()[stretches.pair[own]] for c in ("src", "dst")]
    return _Job(
        number=number,
        begin_ns=int(start.min()),
        endpoints=np.unique(np.concatenate(ends)).astype(np.int64),
        rests={key: rest for key, rest in timed.items() if rest > 0},
        sizes=dict(by_size.iter_rows()),
        length_ns=max(int(start.max() - start.min()), 1),
        repeats=any(len(times) >= levels.MIN_SAMPLES for times in by_pair["start_ns"]),
    )


def _is_same(before: _Job, after: _Job, config: SuccessionConfig) -> bool:
    """Whether two stretches of time are of one job that paused or was started again."""
    if not after.repeats:  # Stuck transfers have unusual sizes, and belong to a few ranks.
        return bool(np.isin(after.endpoints, before.endpoints).mean() >= config.same_hosts)
    if _share_endpoints(before, after) < config.same_hosts:
        return False
    if not before.repeats:
        return True
    fewer, more = sorted((before, after), key=lambda job: job.num)
    is_short = fewer.num * config.longer < more.num
    # A size may fall between two classes. For an interrupted step only the sizes are compared, not how
    # often each is sent.
    weight = more.num if is_short else fewer.num / more.num
    alike = sum(
        min(n, weight * sum(more.sizes.get(size + by, 0) for by in (-1, 0, 1))) for size, n in fewer.sizes.items()
    )
    if alike < config.same_sizes * fewer.num:
        return False
    ratios = [
        after.rests[pair, near] / rest
        for (pair, size), rest in before.rests.items()
        for near in (size - 1, size, size + 1)
        if (pair, near) in after.rests
    ]
    if not ratios:
        pace = (before.num / before.length_ns) / (after.num / after.length_ns)
        return is_short or 1 / config.same_pace < pace < config.same_pace
    return abs(float(np.log(np.median(ratios)))) <= config.same_rate


def _cut_other_pairs(traffic: Traffic, stretches: Stretches, cut: Ints) -> Ints:
    """The first rows of later jobs, of all pairs whose endpoints were cut; `cut` are stretches that begin a job."""
    pair, moment = stretches.pair[cut], stretches.begin_ns[cut]
    rows = [stretches.first_row[cut]]
    src, dst = (traffic.pairs[c].to_numpy().astype(np.int64) for c in ("src", "dst"))
    ends, times = np.concatenate([src[pair], dst[pair]]), np.concatenate([moment, moment])
    start = traffic.messages["start_ns"].to_numpy()
    frequent = np.unique(stretches.pair)
    rare = np.flatnonzero((np.isin(src, ends) | np.isin(dst, ends)) & ~np.isin(np.arange(len(src)), frequent))
    for p in rare.tolist():
        first, last = int(traffic.begin[p]), int(traffic.begin[p + 1])
        # The earliest of the later job's messages that either end takes part in.
        for moment_ns in np.unique(times[(ends == src[p]) | (ends == dst[p])]).tolist():
            at = first + int(np.searchsorted(start[first:last], moment_ns))
            if first < at < last:
                rows.append(np.array([at]))
    return np.unique(np.concatenate(rows))
