"""Who stopped first: the messages of a broken step that never came, and who was free to send the first of them.

A rank sends once all it needs has come. Whoever stands still in a transfer that it began waits for others, and whoever
has not been sent what it is usually sent before its next message waits too. The one that stopped has all it needs, and
does not send.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.collectives import POINT_TO_POINT, number_sizes, number_units
from prism.records.findings import Alternative, Culprit

_SMALL = 0.7  # of a pair's smallest message: one that was cut short
_USUAL_SIZE = levels.MIN_COMPARED  # messages of a pair of one size
_AT_ONCE = levels.THREE_PER_MILLE  # of a step: what is due so close together is due at the same moment
_SMALLEST = 0.05  # quantile: sampled sizes differ by chance
_TEMPLATES = levels.MIN_SAMPLES  # steps that tell when each message is due
_LATE = levels.SHARE_SMALL  # of a step: how far from when it is due a message may come
_SENDER = 1.1  # how much likelier the sender of a missing message is to be the one that stopped than its receiver
_AS_MUCH = 0.7  # of what the sender of the first missing message owes
_LONE = 0.2  # of what the host that owes most owes
_ALL_AT_ONCE = levels.SHARE_LARGE  # how sure it is that a job stopped of which nobody is seen to wait
_FEW = levels.MIN_TWO  # endpoints that began a step which is not the end of the one before


@dataclass(frozen=True, slots=True)
class Standstill:
    """Messages of the last whole step and of the one that broke off, in nanoseconds since the first of them began."""

    due: pl.DataFrame  # src dst due over owed: when each begins and ends, whether it never came
    stuck: pl.DataFrame  # src dst start_ns bytes: transfers that were begun and got nowhere
    turn: frozenset[int]  # endpoints to which something came after they last sent
    last_sent: dict[int, float]  # by endpoint, when that was
    last_to: dict[tuple[int, int], float]  # the same by sender and receiver
    until_ns: int  # when the last message was sent
    behind: dict[int, int]  # by endpoint, messages of collectives that others of the same ones sent and it did not


@dataclass(frozen=True, slots=True)
class FirstToStop:
    """Who stopped first, why that is known, and whether others were seen to go on without it."""

    culprit: Culprit
    why: str
    others_went_on: bool = False
    score: float = _ALL_AT_ONCE
    seconds: tuple[Alternative, ...] = ()  # who may have stopped first instead


def find_stalled(case: Case, begin_ns: int, end_ns: int) -> pl.DataFrame:
    """src dst start_ns end_ns bytes: last messages of pairs, begun in a stretch of time, far smaller than others."""
    stream, start = (case.messages[c].to_numpy() for c in ("stream", "start_ns"))
    steady = np.bincount(stream) >= _USUAL_SIZE
    columns = ["src", "dst", "start_ns", "end_ns", "bytes"]
    own = case.messages.select(*columns, "stream")[np.flatnonzero((start >= begin_ns) & (start <= end_ns))]
    last = own.sort("start_ns").group_by("src", "dst", maintain_order=True).tail(1)
    # What is always as small, such as the acknowledgements of a transport, was not cut, nor were a few numbers.
    last = last.filter(~steady[last["stream"].to_numpy()] & (last["bytes"] >= levels.SMALL_MESSAGE_BYTES).to_numpy())
    if last.is_empty():
        return last.select(columns)
    usual = case.messages.filter(steady[stream]).group_by("src", "dst").agg(pl.col("bytes").min().alias("least"))
    cut = last.join(usual, on=["src", "dst"]).filter(pl.col("bytes") < _SMALL * pl.col("least"))
    return cut.select(columns)


def find_standstill(case: Case, last: int, until: int) -> Standstill | None:
    """What is owed and stuck at `until`, after the whole step `last`.

    None where nothing of another step was begun: the job came to an end or a pause.
    """
    starts = case.steps["start_ns"].to_numpy()
    usual = round(float(np.median(case.length_s)) * 1e9)
    while last + 1 < len(starts) and starts[last + 1] <= until and until > starts[last] + 2 * usual:
        last += 1
    start_ns = int(starts[last])
    followed = last + 1 < len(starts) and starts[last + 1] <= until
    length_ns = int(starts[last + 1]) - start_ns if followed else min(int(case.steps["end_ns"][last]) - start_ns, usual)
    due = _expect(case, last, usual)
    if due is None:
        return None
    due = pl.concat([due, due.with_columns(pl.col("due", "over") + length_ns)]).sort("due")
    sent = case.messages.filter((pl.col("start_ns") >= start_ns) & (pl.col("start_ns") <= until))
    seen = pl.Series("seen", np.bincount(case.messages["stream"].to_numpy())[sent["stream"].to_numpy()])
    sent = sent.with_columns(seen).select(
        "src", "dst", "start_ns", "bytes", "seen", offset=(pl.col("start_ns") - start_ns).cast(pl.Float64)
    )
    sent = sent.sort("offset").join_asof(
        due.select("src", "dst", "due", "least"), left_on="offset", right_on="due", by=["src", "dst"],
        strategy="nearest", tolerance=_LATE * usual, check_sortedness=False,
    )  # fmt: skip
    stuck = _find_stuck(case, sent, start_ns + length_ns, until)
    if stuck.is_empty() and sent.filter(pl.col("due") >= length_ns)["src"].n_unique() < _FEW:
        return None
    out, into = (dict(sent.group_by(e).agg(pl.col("offset").max()).iter_rows()) for e in ("src", "dst"))
    turn = frozenset(e for e, at in into.items() if at > out.get(e, -1.0))
    last_to = {(s, d): at for s, d, at in sent.group_by("src", "dst").agg(pl.col("offset").max()).iter_rows()}
    behind = _count_behind(case, start_ns, until)
    return Standstill(_mark_owed(due, sent, length_ns), stuck, turn, out, last_to, until - start_ns, behind)


def _count_behind(case: Case, start_ns: int, until: int) -> dict[int, int]:
    """By endpoint how many messages fewer its hops sent than those that sent most of the same collectives."""
    steady = (case.streams["role"] != "rare") & ~case.streams["kind"].is_in([*POINT_TO_POINT, "unknown"])
    streams = case.streams.filter(steady)
    own = case.messages.filter((pl.col("start_ns") >= start_ns) & (pl.col("start_ns") <= until))
    sent = streams.select("stream", "src").join(own.group_by("stream").len(), on="stream", how="left")
    sent = sent.with_columns(
        pl.Series("group", number_units(streams)),
        pl.Series("like", number_sizes(streams["bytes"].to_numpy().astype(np.float64))),
        pl.col("len").fill_null(0).cast(pl.Int64),
    )
    behind = sent.with_columns(pl.col("len").max().over("group", "like") - pl.col("len"))
    return dict(behind.group_by("src").agg(pl.col("len").sum()).iter_rows())


def _expect(case: Case, last: int, usual_ns: int) -> pl.DataFrame | None:
    """src dst due over least: what whole steps up to `last` sent, when, and how small such a message ever is."""
    steady = case.messages.filter(pl.col("role") != "rare")
    counts = np.bincount(steady.filter(pl.col("step") >= 0)["step"].to_numpy(), minlength=case.steps.height)
    usual = float(np.median(counts))
    like = np.flatnonzero(np.abs(counts[: last + 1] - usual) <= 0.05 * usual)[-_TEMPLATES:]
    if not len(like):
        return None
    starts = case.steps.select(pl.col("index").alias("step"), pl.col("start_ns").alias("step_ns"))
    template = steady.filter(pl.col("step").is_in(like)).join(starts, on="step").sort("start_ns")
    # Behind a lost record a place is that of the next message: the mean of two is a time at which nothing is sent.
    due = template.group_by("src", "dst", "stream", "place").agg(
        (pl.col("start_ns") - pl.col("step_ns")).quantile(0.5, "lower").alias("due"),
        (pl.col("end_ns") - pl.col("step_ns")).quantile(0.5, "lower").alias("over"),
        pl.len().alias("num"),
    )
    # Routed tokens have any size.
    size = pl.when(pl.col("role").first() == "routed").then(0.0).otherwise(pl.col("bytes").quantile(_SMALLEST))
    due = due.filter(pl.col("num") * 2 > len(like)).join(
        steady.group_by("stream").agg(size.alias("least")), on="stream"
    )
    least = pl.col("least").min().over("src", "dst", (pl.col("due") / (_AT_ONCE * usual_ns)).round())
    return due.select("src", "dst", "due", "over", least)


def _find_stuck(case: Case, sent: pl.DataFrame, begin_ns: int, until: int) -> pl.DataFrame:
    """src dst start_ns bytes: last messages of pairs that are far smaller than what was due when they came."""
    last = sent.group_by("src", "dst", maintain_order=True).tail(1)
    # What is always as small, such as a norm at the end of a step, was not cut.
    cut = last.filter((pl.col("bytes") < _SMALL * pl.col("least")) & (pl.col("seen") < _USUAL_SIZE))
    cut = cut.select("src", "dst", "start_ns", "bytes")
    return pl.concat([cut, find_stalled(case, begin_ns, until).drop("end_ns")]).unique(maintain_order=True)


def _mark_owed(due: pl.DataFrame, sent: pl.DataFrame, length_ns: int) -> pl.DataFrame:
    """The messages due, and whether their sender still owes them.

    What an endpoint owes is what is due after the last that it sent: a record may be lost, but whoever sent what comes
    later has sent it, and whoever went on after it would have come has received it.
    """
    latest = sent.group_by("src").agg(pl.col("offset").max().alias("sent_at")).sort("sent_at")
    dues = due.select("src", "due").sort("due")
    at = latest.join_asof(
        dues, left_on="sent_at", right_on="due", by="src", strategy="nearest", check_sortedness=False
    ).select("src", pl.col("due").alias("reached"))
    margin = _AT_ONCE * length_ns
    known = due.join(at, on="src", how="left").join(
        at.rename({"src": "dst", "reached": "went_on"}), on="dst", how="left"
    )
    owed = (pl.col("due") > pl.col("reached").fill_null(-1.0) + margin) & (
        pl.col("went_on").fill_null(-1.0) <= pl.col("over") + margin
    )
    return known.select("src", "dst", "due", "over", owed=owed)


def name_first_to_stop(case: Case, stands: Standstill) -> FirstToStop:
    """The worker that was free to send and did not, or that others are stuck with; else the job."""
    usual_ns = float(np.median(case.length_s)) * 1e9
    num_stuck = stands.stuck["src"].n_unique()
    free = _find_free(case, stands)
    if free.is_empty():
        return _name_missed(case, stands)
    moment = float(free["first"].min()) + _AT_ONCE * usual_ns  # type: ignore[arg-type]
    at_once = free.filter(pl.col("first") <= moment)
    if at_once["host"].n_unique() > max(2, 0.5 * len(case.own_by_host)):
        return FirstToStop(culprit("job", case.job.id), "all ranks stopped at once")
    head = _pick_head(case, stands, at_once, moment)
    odds = _weigh_hosts(case, stands, free, _AT_ONCE * usual_ns)
    sure = odds.pop(case.hosts[head])
    # Those who stop with it send nothing after its message was due; those who wait for it go on as far as they can.
    later = {case.hosts[e] for e, at in stands.last_sent.items() if at > moment} - {case.hosts[head]}
    went_on = bool(later or num_stuck)
    ends: list[list[int]] = []
    if num_stuck:
        ends = _find_ends_of_hop(case, stands, head, _AT_ONCE * usual_ns)
    elif not _wait_for_receivers(case):
        head = _who_did_not_take(stands, head, _AT_ONCE * usual_ns)
        ends = _find_both_ends(case, stands, head, _AT_ONCE * usual_ns)
    if ends:
        named = " and ".join(_name_stopped(case, end).id for end in ends)
        why = f"the first message that never came is between {named}; records do not show which of them stopped"
        both = culprit("group", ",".join(case.address(e) for end in ends for e in end))
        sure += sum(odds.get(host, 0.0) for host in {case.hosts[end[0]] for end in ends})
        return FirstToStop(both, why, went_on, min(levels.SHARE_NEARLY_ALL, sure))
    # Those who were free with it; where it is another that did not take, all of its host that owe.
    with_it = free["src"] if head in free["src"] else stands.due.filter("owed")["src"].unique()
    members = sorted(int(e) for e in with_it if case.hosts[int(e)] == case.hosts[head])
    row = stands.due.filter(pl.col("owed") & (pl.col("src") == head)).sort("due").row(0, named=True)
    waits = f"{num_stuck} endpoints are stuck in transfers that they began" if num_stuck else "all others wait"
    message = f"its message to {case.address(int(row['dst']))}"
    why = f"{case.address(head)} had all it needs for {message} and sent none, and {waits}"
    seconds = tuple(
        Alternative(kind="hang", culprit=culprit("host", host), score=round(p, 3))
        for host, p in odds.items()
        if p >= levels.SHARE_SMALL
    )
    sure = min(levels.SHARE_NEARLY_ALL, sure)
    return FirstToStop(_name_stopped(case, members), why, went_on, sure, seconds)


def _weigh_hosts(case: Case, stands: Standstill, free: pl.DataFrame, margin_ns: float) -> dict[str, float]:
    """The probability by host that it stopped first: the earlier its first missing message was due, the likelier.

    Each message that is missing at that moment and that a host has to do with counts as one nat, as in all scores.
    """
    moment = float(free["first"].min())  # type: ignore[arg-type]
    missing = stands.due.filter(pl.col("owed") & (pl.col("due") <= moment + margin_ns))
    touched = [{case.hosts[int(s)], case.hosts[int(d)]} for s, d in missing.select("src", "dst").iter_rows()]
    first: dict[str, float] = {}
    for endpoint, due in free.select("src", "first").iter_rows():
        host = case.hosts[int(endpoint)]
        first[host] = min(first.get(host, float("inf")), due)
    nats = {h: sum(h in t for t in touched) - (due - moment) / margin_ns for h, due in first.items()}
    for endpoint, num in stands.behind.items():
        if case.hosts[endpoint] in nats:
            nats[case.hosts[endpoint]] += num
    most = max(nats.values())
    odds = {host: math.exp(value - most) for host, value in nats.items()}
    return {host: value / sum(odds.values()) for host, value in odds.items()}


def _pick_head(case: Case, stands: Standstill, free: pl.DataFrame, moment: float) -> int:
    """Of those who stopped at the same moment, the one whose host has most to do with what is missing then.

    A message to a worker that stands still may never be recorded, and where a transfer begins once both sides are ready
    both seem to owe it: it is then the turn of the one last sent to.
    """
    first = stands.due.filter(pl.col("owed") & (pl.col("due") <= moment))
    ends = [case.hosts[int(e)] for side in ("src", "dst") for e in first[side]]
    weights = [_SENDER] * first.height + [1.0] * first.height
    ends += [case.hosts[e] for e in stands.behind]
    weights += [float(num) for num in stands.behind.values()]
    votes: dict[str, float] = {}
    for host, weight in zip(ends, weights, strict=True):
        votes[host] = votes.get(host, 0.0) + weight
    rows = sorted(
        (-votes.get(case.hosts[int(e)], 0.0), int(e) not in stands.turn, due, int(e))
        for e, due in free.select("src", "first").iter_rows()
    )
    return rows[0][-1]


def _wait_for_receivers(case: Case) -> bool:
    """Whether transfers between stages begin before their receiver is ready: at some places of a step they last longer.

    Then a message that was never begun is missing because its sender stopped, and not its receiver.
    """
    sent = case.messages.filter((pl.col("kind") == "pp") & (pl.col("role") != "rare") & (pl.col("step") >= 0))
    took = sent.group_by("stream", "place").agg((pl.col("end_ns") - pl.col("start_ns")).median().alias("took"))
    waits = took.group_by("stream").agg(pl.col("took").max() >= levels.RATIO_FAR * pl.col("took").min())["took"]
    return bool(len(waits) and waits.mean() >= levels.SHARE_QUICK)  # type: ignore[operator]


def _who_did_not_take(stands: Standstill, head: int, margin_ns: float) -> int:
    """The receiver of the first missing message, where it was its turn to send and the sender's was over.

    Where transfers that were begun leave no record, one that its receiver does not take seems not to have been sent.
    But whoever still sent when it was due could have taken it.
    """
    owed = stands.due.filter("owed").sort("due")
    first = owed.filter(pl.col("src") == head).row(0, named=True)
    to = int(first["dst"])
    late = [owed.filter((pl.col("src") == e) & (pl.col("due") <= stands.until_ns)).height for e in (head, to)]
    silent = stands.last_sent.get(to, -1.0) < first["due"] - margin_ns and to in owed["src"]
    silent &= stands.behind.get(to, 0) >= stands.behind.get(head, 0)
    return to if to in stands.turn and head not in stands.turn and silent and late[1] >= _AS_MUCH * late[0] else head


def _find_both_ends(case: Case, stands: Standstill, head: int, margin_ns: float) -> list[list[int]]:
    """The endpoints at both ends of the first message that never came, where either end may have stopped; else none.

    A message between two stages begins once both are ready for it, so it is missing whichever of them stopped. A third
    host that misses something at the same moment, or an end that went on with others, tells the two apart. What the two
    exchange in the same call does not: it passes while the call waits for the message.
    """
    owed = stands.due.filter("owed").sort("due")
    hosts = np.array(case.hosts, dtype=str)
    own = owed.filter(pl.Series(hosts[owed["src"].to_numpy()] == case.hosts[head]))
    first = float(own["due"][0])
    at_once = owed.filter((pl.col("due") - first).abs() <= margin_ns)
    ends = {tuple(sorted({case.hosts[s], case.hosts[d]})) for s, d in at_once.select("src", "dst").iter_rows()}
    between = [pair for pair in ends if case.hosts[head] in pair]
    if len(between) != 1 or len(between[0]) != 2:
        return []
    (other,) = set(between[0]) - {case.hosts[head]}
    # Inside a host nothing is seen: several ranks that do not send may wait for one that never does.
    is_lone = own["src"].n_unique() == 1
    to = {int(e) for e in at_once.filter(pl.col("src") == head)["dst"]}
    here = [head] if is_lone else sorted(case.own_by_host[case.hosts[head]])
    there = sorted(to if is_lone else case.own_by_host[other])
    stage = [case.stages.stage.get(int(e)) for e in (here[0], there[0])]
    went_on = any(
        at >= first - margin_ns
        for (s, d), at in stands.last_to.items()
        if case.hosts[s] == other and case.hosts[d] != case.hosts[head]
    )
    return [] if went_on or None in stage or stage[0] == stage[1] else [here, there]


def _find_ends_of_hop(case: Case, stands: Standstill, head: int, margin_ns: float) -> list[list[int]]:
    """The ends of the only hop of a collective that nobody began, where the host of its sender began others.

    One rank of a host may have stopped, and the hop waits for both of its ends: it may be either, but for a receiver
    whose NIC is its own and that began a hop itself.
    """
    began = {case.hosts[int(e)] for e in stands.stuck["src"]}
    owed = stands.due.filter(pl.col("owed") & ~pl.col("src").is_in(stands.stuck["src"].implode())).sort("due")
    first = float(owed["due"].min())  # type: ignore[arg-type]
    hops = owed.filter(pl.col("due") <= first + margin_ns).select("src", "dst").unique()
    if hops.height != 1 or case.hosts[head] not in began or case.hosts[int(hops["dst"][0])] not in began:
        return []
    to = int(hops["dst"][0])
    is_alive = to in stands.stuck["src"] and case.gpus == len(case.job.endpoints)
    return [] if is_alive else [[head], [to]]


def _name_missed(case: Case, stands: Standstill) -> FirstToStop:
    """The receiver of the first transfer that got stuck, where it is not stuck itself."""
    missed = stands.stuck.filter(~pl.col("dst").is_in(stands.stuck["src"].implode())).sort("start_ns")
    if missed.is_empty():
        named = _name_absorber(case, stands) or _name_two(case, stands)
        return named or FirstToStop(culprit("job", case.job.id), "all ranks stopped at once")
    host = case.hosts[int(missed["dst"][0])]
    own = [int(e) for e in missed["dst"] if case.hosts[int(e)] == host]
    why = f"{missed.height} transfers to it and others were begun and never taken"
    sure = min(levels.SHARE_NEARLY_ALL, len(own) / missed.height)
    return FirstToStop(_name_stopped(case, sorted(set(own))), why, True, sure)


def _name_two(case: Case, stands: Standstill) -> FirstToStop | None:
    """Two hosts of more between which all transfers are stuck: a rank of either may be missing, the others wait."""
    hosts = sorted({case.hosts[int(e)] for side in ("src", "dst") for e in stands.stuck[side]})
    if len(hosts) != _FEW or len(case.own_by_host) <= _FEW:
        return None
    both = culprit("group", ",".join(case.address(e) for host in hosts for e in sorted(case.own_by_host[host])))
    why = f"all transfers that got stuck are between {' and '.join(hosts)}; records do not show which of them stopped"
    return FirstToStop(both, why, True)


def _name_absorber(case: Case, stands: Standstill) -> FirstToStop | None:
    """The only host of a ring that took in more than it sent on, where every hop of the ring got stuck.

    Each rank that joined a collective adds its own piece to what it passes on, so more is sent with every hop after the
    one that is missing, and what reaches its host stays there.
    """
    hosts = np.array(case.hosts, dtype=str)
    kept: dict[str, int] = {}
    for src, dst, size in stands.stuck.select("src", "dst", "bytes").iter_rows():
        kept[hosts[src]] = kept.get(hosts[src], 0) - size
        kept[hosts[dst]] = kept.get(hosts[dst], 0) + size
    absorbing = [host for host, size in kept.items() if size > 0]
    if len(absorbing) != 1 or len(kept) <= _FEW:
        return None
    members = sorted({int(e) for e in stands.stuck["dst"] if case.hosts[int(e)] == absorbing[0]})
    why = "every hop of a collective was begun, and only this host took in more than it passed on"
    return FirstToStop(_name_stopped(case, members), why, True, levels.SHARE_NEARLY_ALL)


def _name_stopped(case: Case, members: list[int]) -> Culprit:
    """A single endpoint, otherwise the host: its ranks stop together."""
    host = case.hosts[members[0]]
    if len(members) == 1 or host in {case.address(e) for e in members}:
        return case.name_worker(members)
    return culprit("host", host)


def _find_free(case: Case, stands: Standstill) -> pl.DataFrame:
    """src host first: endpoints that owe messages and wait for nobody, with when they owe the first."""
    hosts = np.unique(np.array(case.hosts, dtype=str), return_inverse=True)[1]
    owed = stands.due.filter("owed")
    owed = owed.with_columns(
        pl.Series("host", hosts[owed["src"].to_numpy()]),
        pl.Series("to", hosts[owed["dst"].to_numpy()]),
        stuck=pl.col("src").is_in(stands.stuck["src"].implode()),
    )
    late = (pl.col("due") <= stands.until_ns).sum()
    first = (
        owed.filter(~pl.col("stuck"))
        .group_by("src", "host")
        .agg(pl.col("due").min().alias("first"), late.alias("late"))
    )
    # What comes to any rank of a host may be what another one waits for: inside, nothing is seen.
    lacks = owed.filter(~pl.col("stuck") & (pl.col("host") != pl.col("to"))).group_by(pl.col("to").alias("host"))
    first = first.join(lacks.agg(pl.col("over").min().alias("lacks")), on="host", how="left")
    free = first.filter((pl.col("lacks") > pl.col("first")).fill_null(True))
    free = first if free.is_empty() else free
    # One lost record looks like one message that never came; who stopped owes all that was due since.
    late = pl.col("late").sum().over("host")
    return free.filter(late >= _LONE * late.max())
