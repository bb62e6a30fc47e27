"""Which rank stopped first: the posterior over hosts, from the messages that an interrupted step lacks.

Whoever still sends has not stopped. Of the others, those at the first missing message may have: its sender, which
had to compute it, or its receiver, where a message begins once both of its ends are ready. Two that nothing tells apart
are both named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe.findings.case import Case, culprit
from prism.observe.findings.standstill import AT_ONCE, Standstill
from prism.records.findings import Alternative, Culprit


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConfig:
    """What counts how much, in nats."""

    missing: float = 1.0  # a message of the first moment that is missing at an endpoint
    sent: float = 6.0  # against an endpoint that sends later: it has not stopped
    taken: float = 1.5  # against one that others still send to: it may not have asked for it
    later: float = 0.01  # of a step that the first missing message of an endpoint is due later: one nat
    most: int = 4  # messages of the first moment that count
    tied: float = 0.4  # times as likely as the first: a second one that nothing tells apart
    least: float = 0.5  # that it is the first, or one of the two
    surest: float = 0.95
    listed: float = 0.1
    waits: float = 4.0  # times as long as at other places of a step: a transfer waits for its receiver
    waiting: float = 0.25  # of the streams between stages that do
    all_at_once: float = 0.8  # confidence that a job stopped where no rank is seen to wait


@dataclass(frozen=True, slots=True)
class FirstToStop:
    """Which rank or host stopped first, the evidence, and whether others were seen to continue without it."""

    culprit: Culprit
    why: str
    others_went_on: bool = False
    score: float = 0.8
    seconds: tuple[Alternative, ...] = ()  # others that may have stopped first


def name_first_to_stop(case: Case, stands: Standstill, config: StopConfig | None = None) -> FirstToStop:
    """The host that stopped first, or two that nothing tells apart; the job where more may have."""
    config = config or StopConfig()
    table = _weigh(case, stands, config)
    everyone = FirstToStop(culprit("job", case.job.id), "all ranks stopped at once", score=config.all_at_once)
    if table.is_empty():
        return everyone
    odds = table.group_by("host", maintain_order=True).agg(pl.col("nats").max())
    odds = odds.sort("nats", "host", descending=[True, False])
    weight = np.exp(odds["nats"].to_numpy() - odds["nats"][0])
    sure = weight / weight.sum()
    first = [str(h) for h, p in zip(odds["host"], sure, strict=True) if p >= config.tied * sure[0]]
    told = float(sure[: len(first)].sum())
    if len(first) > 2 or told < config.least:
        return everyone
    named = [_name_members(case, table, host) for host in first]
    moment = float(table["first"].min()) + AT_ONCE * stands.step_ns  # type: ignore[arg-type]
    went_on = any(at > moment for e, at in stands.last_sent.items() if case.hosts[e] not in first)
    went_on |= not stands.stuck.is_empty()
    others = f"{stands.stuck['src'].n_unique()} endpoints are stuck" if stands.stuck.height else "all others wait"
    names = " or ".join(name.id for name in named)
    why = f"the first message that never came was due at {names}, which sent nothing after it, and {others}"
    if len(named) == 2:
        both = ",".join(case.address(e) for host in first for e in _list_members(table, host))
        named = [culprit("group", both)]
        why += "; records do not show which of them stopped"
    seconds = tuple(
        Alternative(kind="hang", culprit=culprit("host", str(host)), score=round(float(p), 3))
        for host, p in list(zip(odds["host"], sure, strict=True))[len(first) :]
        if p >= config.listed
    )
    return FirstToStop(named[0], why, went_on, min(config.surest, told), seconds)


def _weigh(case: Case, stands: Standstill, config: StopConfig) -> pl.DataFrame:
    """endpoint host first nats: how likely each endpoint that lacks a message is to have stopped."""
    margin = AT_ONCE * stands.step_ns
    owed = stands.due.filter("owed")
    met = owed.filter(pl.col("kind") != "pp") if _begin_with_senders(case, stands, config) else owed
    touched = pl.concat(
        [own.select(pl.col(side).alias("endpoint"), "due") for own, side in ((owed, "src"), (met, "dst"))]
    )
    lacks = touched.group_by("endpoint", maintain_order=True).agg(pl.col("due").min().alias("first"))
    if lacks.is_empty():
        return lacks.with_columns(host=pl.lit(""), nats=pl.lit(0.0))
    begin = float(lacks["first"].min())  # type: ignore[arg-type]
    at_first = touched.join(lacks, on="endpoint").filter(pl.col("due") <= pl.col("first") + margin)
    lacks = lacks.join(at_first.group_by("endpoint").agg(pl.len().alias("num")), on="endpoint")
    sent, taken = ({**stands.last_sent}, {**stands.last_taken})
    for src, dst in stands.stuck.select("src", "dst").iter_rows():  # it was begun, whenever it was due
        sent[src] = taken[dst] = np.inf
    rows = []
    for endpoint, first, num in lacks.select("endpoint", "first", "num").iter_rows():
        nats = config.missing * min(num, config.most) - (first - begin) / (config.later * stands.step_ns)
        nats -= config.sent * (sent.get(endpoint, -1.0) > first + margin)

        nats -= config.taken * (taken.get(endpoint, -1.0) > first + margin)
        rows.append((endpoint, case.hosts[endpoint], first, nats))
    return pl.DataFrame(rows, schema=["endpoint", "host", "first", "nats"], orient="row")


def _begin_with_senders(case: Case, stands: Standstill, config: StopConfig) -> bool:
    """Whether transfers between stages begin before their receiver is ready: at some places of a step they last longer.

    Then a message that was never begun is missing because its sender stopped. One that got stuck shows the same.
    """
    between = case.streams.filter(pl.col("kind") == "pp").select("src", "dst")
    if not stands.stuck.join(between, on=["src", "dst"], how="semi").is_empty():
        return True
    sent = case.messages.filter((pl.col("kind") == "pp") & (pl.col("role") != "rare") & (pl.col("step") >= 0))
    took = sent.group_by("stream", "place").agg((pl.col("end_ns") - pl.col("start_ns")).median().alias("took"))
    waits = took.group_by("stream").agg(pl.col("took").max() >= config.waits * pl.col("took").min())["took"]
    return bool(len(waits) and waits.mean() >= config.waiting)  # type: ignore[operator]


def _list_members(table: pl.DataFrame, host: str) -> list[int]:
    """The endpoints of a host that are as likely as its likeliest."""
    own = table.filter(pl.col("host") == host)
    best = float(own["nats"].max())  # type: ignore[arg-type]
    return sorted(own.filter(pl.col("nats") > best - 1.0)["endpoint"].to_list())


def _name_members(case: Case, table: pl.DataFrame, host: str) -> Culprit:
    """A single endpoint, otherwise the host: its ranks stop together."""
    members = _list_members(table, host)
    if len(members) == 1 or host in {case.address(e) for e in members}:
        return case.name_worker(members)
    return culprit("host", host)


def name_silent_host(case: Case, before_ns: int, since_ns: int) -> FirstToStop | None:
    """The only host that has sent nothing since a moment, not even acknowledgements, while all others have.

    It has sent something since the moment before: otherwise an exporter may have stopped.
    """
    if case.sent_until_ns is None:
        return None
    until = {host: max(int(case.sent_until_ns[e]) for e in own) for host, own in case.own_by_host.items()}
    silent = [host for host, last_ns in until.items() if last_ns < since_ns]
    if len(silent) != 1 or len(until) <= 2 or until[silent[0]] < before_ns:
        return None
    why = f"{silent[0]} has sent nothing since that step began, and all others have"
    return FirstToStop(culprit("host", silent[0]), why, True, StopConfig().surest)
