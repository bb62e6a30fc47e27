"""Which rank stopped first: messages of an interrupted step that were never sent, and who could have sent the first.

A rank sends once everything it needs has arrived. A rank that is stuck in a transfer that it began waits for others,
and so does a rank that has not received what it usually receives before its next message. The rank that stopped has
everything it needs and does not send.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.standstill import AT_ONCE, Standstill
from prism.records.findings import Alternative, Culprit

_SENDER = 1.1  # odds that the sender of a missing message stopped, rather than its receiver
_AS_MUCH = 0.7  # of what the sender of the first missing message owes
_LONE = 0.2  # of what the host that owes most owes
_ALL_AT_ONCE = levels.SHARE_LARGE  # confidence that a job stopped if no rank is seen to wait
_TWO = levels.MIN_TWO  # hosts: either may be the one that stopped


@dataclass(frozen=True, slots=True)
class FirstToStop:
    """Which rank or host stopped first, the evidence, and whether others were seen to continue without it."""

    culprit: Culprit
    why: str
    others_went_on: bool = False
    score: float = _ALL_AT_ONCE
    seconds: tuple[Alternative, ...] = ()  # others that may have stopped first


def name_first_to_stop(case: Case, stands: Standstill) -> FirstToStop:
    """The worker that was free to send and did not, or that others are stuck with; else the job."""
    usual_ns = float(np.median(case.length_s)) * 1e9
    num_stuck = stands.stuck["src"].n_unique()
    free = _find_free(case, stands)
    if free.is_empty():
        return _name_missed(case, stands)
    moment = float(free["first"].min()) + AT_ONCE * usual_ns  # type: ignore[arg-type]
    at_once = free.filter(pl.col("first") <= moment)
    if at_once["host"].n_unique() > max(2, 0.5 * len(case.own_by_host)):
        return FirstToStop(culprit("job", case.job.id), "all ranks stopped at once")
    head = _pick_head(case, stands, at_once, moment)
    odds = _weigh_hosts(case, stands, free, AT_ONCE * usual_ns)
    sure = odds.pop(case.hosts[head])
    # Ranks that stop with it send nothing after its message was due; ranks that wait continue as far as they can.
    later = {case.hosts[e] for e, at in stands.last_sent.items() if at > moment} - {case.hosts[head]}
    went_on = bool(later or num_stuck)
    ends = _find_ends_of_hop(case, stands, head, AT_ONCE * usual_ns) if num_stuck else []
    if not ends and not _wait_for_receivers(case, stands):
        head = head if num_stuck else _who_did_not_take(stands, head, AT_ONCE * usual_ns)
        ends = _find_both_ends(case, stands, head, AT_ONCE * usual_ns)
    if ends:
        named = " and ".join(_name_stopped(case, end).id for end in ends)
        why = f"the first message that never came is between {named}; records do not show which of them stopped"
        both = culprit("group", ",".join(case.address(e) for end in ends for e in end))
        sure += sum(odds.get(host, 0.0) for host in {case.hosts[end[0]] for end in ends})
        return FirstToStop(both, why, went_on, min(levels.SHARE_NEARLY_ALL, sure))
    # Ranks that could also send; if another one did not receive, all ranks of its host with missing messages.
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


def name_silent_host(case: Case, before_ns: int, since_ns: int) -> FirstToStop | None:
    """The only host that has sent nothing since a moment, not even acknowledgements, while all others have.

    It has sent something since the moment before: otherwise an exporter may have stopped.
    """
    if case.sent_until_ns is None:
        return None
    until = {host: max(int(case.sent_until_ns[e]) for e in own) for host, own in case.own_by_host.items()}
    silent = [host for host, last_ns in until.items() if last_ns < since_ns]
    if len(silent) != 1 or len(until) <= _TWO or until[silent[0]] < before_ns:
        return None
    why = f"{silent[0]} has sent nothing since that step began, and all others have"
    return FirstToStop(_name_stopped(case, sorted(case.own_by_host[silent[0]])), why, True, levels.SHARE_NEARLY_ALL)


def _weigh_hosts(case: Case, stands: Standstill, free: pl.DataFrame, margin_ns: float) -> dict[str, float]:
    """The probability by host that it stopped first: the earlier its first missing message was due, the likelier.

    Each message that is missing at that moment and involves a host counts as one nat, as in all scores. A host
    that could send and did not may have stopped before it received what another stage was to send to it.
    """
    moment = float(free["first"].min())  # type: ignore[arg-type]
    missing = stands.due.filter(pl.col("owed") & (pl.col("due") <= moment + margin_ns))
    touched = [{case.hosts[int(s)], case.hosts[int(d)]} for s, d in missing.select("src", "dst").iter_rows()]
    first: dict[str, float] = {}
    for endpoint, due in free.select("src", "first").iter_rows():
        host = case.hosts[int(endpoint)]
        first[host] = min(first.get(host, float("inf")), due)
    owed = stands.due.filter("owed").join(free.select("src"), on="src", how="semi")
    for src, dst, due in owed.select("src", "dst", "due").iter_rows():
        host = case.hosts[dst]
        if host in first and case.stages.stage.get(src) != case.stages.stage.get(dst):
            first[host] = min(first[host], due)
    nats = {h: sum(h in t for t in touched) - (due - moment) / margin_ns for h, due in first.items()}
    for host, num in _count_behind(case, stands, set(nats)).items():
        nats[host] += num
    most = max(nats.values())
    odds = {host: math.exp(value - most) for host, value in nats.items()}
    return {host: value / sum(odds.values()) for host, value in odds.items()}


def _count_behind(case: Case, stands: Standstill, suspected: set[str]) -> dict[str, float]:
    """By host how many messages fewer it sent than others of its collectives, beyond what lost records explain.

    Hosts that are not suspected show how many these are; else the one that misses fewest.
    """
    num = dict.fromkeys([*suspected, *(case.hosts[e] for e in stands.behind)], 0)
    for endpoint, less in stands.behind.items():
        num[case.hosts[endpoint]] += less
    others = [less for host, less in num.items() if host not in suspected]
    usual = max(others) if others else min(num.values())
    chance = usual + levels.SIGMAS_UNLIKELY * math.sqrt(usual)
    return {host: max(num[host] - chance, 0.0) for host in suspected}


def _pick_head(case: Case, stands: Standstill, free: pl.DataFrame, moment: float) -> int:
    """Of the ranks that stopped at the same moment, the one whose host is involved in most missing messages.

    A message to a stopped worker may never be recorded, and if a transfer begins once both sides are ready,
    both seem to owe it: then it is the turn of the one that received last.
    """
    first = stands.due.filter(pl.col("owed") & (pl.col("due") <= moment))
    ends = [case.hosts[int(e)] for side in ("src", "dst") for e in first[side]]
    weights = [_SENDER] * first.height + [1.0] * first.height
    behind = _count_behind(case, stands, {case.hosts[int(e)] for e in free["src"]})
    ends += list(behind)
    weights += list(behind.values())
    votes: dict[str, float] = {}
    for host, weight in zip(ends, weights, strict=True):
        votes[host] = votes.get(host, 0.0) + weight
    rows = sorted(
        (-votes.get(case.hosts[int(e)], 0.0), int(e) not in stands.turn, due, int(e))
        for e, due in free.select("src", "first").iter_rows()
    )
    return rows[0][-1]


def _wait_for_receivers(case: Case, stands: Standstill) -> bool:
    """Whether transfers between stages begin before their receiver is ready: at some places of a step they last longer.

    Then a message that was never begun is missing because its sender stopped, and not its receiver. One that got stuck
    shows the same.
    """
    between_stages = case.streams.filter(pl.col("kind") == "pp").select("src", "dst")
    if not stands.stuck.join(between_stages, on=["src", "dst"], how="semi").is_empty():
        return True
    sent = case.messages.filter((pl.col("kind") == "pp") & (pl.col("role") != "rare") & (pl.col("step") >= 0))
    took = sent.group_by("stream", "place").agg((pl.col("end_ns") - pl.col("start_ns")).median().alias("took"))
    waits = took.group_by("stream").agg(pl.col("took").max() >= levels.RATIO_FAR * pl.col("took").min())["took"]
    return bool(len(waits) and waits.mean() >= levels.SHARE_QUICK)  # type: ignore[operator]


def _who_did_not_take(stands: Standstill, head: int, margin_ns: float) -> int:
    """The receiver of the first missing message, where it was its turn to send and the sender's was over.

    Where transfers that were begun leave no record, one that its receiver does not take seems not to have been sent.
    But a rank that still sent when it was due could have received it.
    """
    owed = stands.due.filter("owed").sort("due")
    first = owed.filter(pl.col("src") == head).row(0, named=True)
    to = int(first["dst"])
    late = [owed.filter((pl.col("src") == e) & (pl.col("due") <= stands.until_ns)).height for e in (head, to)]
    silent = stands.last_sent.get(to, -1.0) < first["due"] - margin_ns and to in owed["src"]
    silent &= stands.behind.get(to, 0) >= stands.behind.get(head, 0)
    return to if to in stands.turn and head not in stands.turn and silent and late[1] >= _AS_MUCH * late[0] else head


def _find_both_ends(case: Case, stands: Standstill, head: int, margin_ns: float) -> list[list[int]]:
    """The endpoints at both ends of the first missing message, if either may have stopped; else none.

    A message between two stages begins once both are ready for it, so it is missing whichever of them stopped. A third
    host that misses something at the same moment, or an end that continued with others, decides. What the two
    exchange in the same call does not decide: it passes while the call waits for the message.
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
    # Traffic inside a host is not visible: several ranks that do not send may wait for one that never sends.
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
    if len(hosts) != _TWO or len(case.own_by_host) <= _TWO:
        return None
    both = culprit("group", ",".join(case.address(e) for host in hosts for e in sorted(case.own_by_host[host])))
    why = f"all transfers that got stuck are between {' and '.join(hosts)}; records do not show which of them stopped"
    return FirstToStop(both, why, True)


def _name_absorber(case: Case, stands: Standstill) -> FirstToStop | None:
    """The only host of a ring that received more than it sent on, if every hop of the ring is stuck.

    Each rank that joined a collective adds its own piece to what it passes on, so more is sent with every hop after the
    one that is missing, and what reaches its host stays there.
    """
    hosts = np.array(case.hosts, dtype=str)
    kept: dict[str, int] = {}
    for src, dst, size in stands.stuck.select("src", "dst", "bytes").iter_rows():
        kept[hosts[src]] = kept.get(hosts[src], 0) - size
        kept[hosts[dst]] = kept.get(hosts[dst], 0) + size
    absorbing = [host for host, size in kept.items() if size > 0]
    if len(absorbing) != 1 or len(kept) <= _TWO:
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
    """src host first: endpoints with missing messages that wait for nobody, and when the first was due."""
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
    # A message to any rank of a host may be what another one waits for: traffic inside is not visible.
    lacks = owed.filter(~pl.col("stuck") & (pl.col("host") != pl.col("to"))).group_by(pl.col("to").alias("host"))
    first = first.join(lacks.agg(pl.col("over").min().alias("lacks")), on="host", how="left")
    free = first.filter((pl.col("lacks") > pl.col("first")).fill_null(True))
    free = first if free.is_empty() else free
    # A lost record looks like one missing message; a stopped rank owes all messages that were due since.
    late = pl.col("late").sum().over("host")
    return free.filter(late >= _LONE * late.max())
