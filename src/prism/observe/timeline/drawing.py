"""The timeline: what each rank sent and received, computed and waited for, step by step, as SPANS."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.diagnose import open_case
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.findings.case import Case, Ints
from prism.observe.parallelism.hidden_stages import name_senders
from prism.observe.parallelism.message_streams import find_rows
from prism.observe.steps.spacing import find_step
from prism.observe.timeline.spans import join_touching, reach_before
from prism.observe.traffic.medians import quantile_groups
from prism.observe.traffic.numbering import bound_groups, number_keys, number_places
from prism.observe.traffic.threads import do_each
from prism.records.spans import SPAN_KINDS, SPANS

_SHORTEST_NS = levels.CLOCK_TOLERANCE_NS  # shorter pauses between messages are not worth a span
_TOUCH_NS = levels.MAX_MESSAGES  # messages of one kind closer than this are one transfer in pieces
_BETWEEN_TWO = ("pp", "cp")  # kinds of messages that one rank sends to one other
_ENOUGH = levels.MIN_TWO  # messages of a stream in a step: one of them found its receiver waiting
_AT_ONCE_NS = 1_000  # ends so close are one moment
_VERBS = ("", "send", "receive", "exchange")  # a bit for each direction
_WAITED = levels.SHARE_SMALL  # a pause longer than the rank's quick ones by this share holds a wait


def build_timeline(diagnosis: Diagnosis) -> pl.DataFrame:
    """SPANS of every job; a rank is the position of its endpoint in the job's list."""
    parts = do_each(lambda job: _spans_of(diagnosis, job), [job for job in diagnosis.jobs if job.studied])
    return pl.concat(parts) if parts else SPANS.empty()


def _spans_of(diagnosis: Diagnosis, job: JobDiagnosis) -> pl.DataFrame:
    case = open_case(diagnosis.traffic, job, 0)
    rank_of = np.full(len(case.hosts), -1, np.int64)
    rank_of[job.observed.endpoints] = np.arange(len(job.observed.endpoints))
    sent = begin_together(_name_senders(case, job.streams))
    busy = _communication(sent, rank_of)
    idle = _number_steps(_pauses(busy), job.steps)
    spans = [
        busy,
        *_split_waits(idle, _is_late(diagnosis, job, case)),
        _microbatches(sent, case, rank_of),
        _steps(job, len(job.observed.endpoints)),
    ]
    columns = ["rank", "lane", "kind", "name", "start_ns", "end_ns", "bytes"]
    numbered = _number_steps(_put_in_order(pl.concat([s.select(columns) for s in spans])), job.steps)
    return SPANS.conform(numbered.with_columns(job=pl.lit(job.id)), job.id)


def _name_senders(case: Case, streams: pl.DataFrame) -> pl.DataFrame:
    """The case's messages, those of a pipeline from the rank that sends them, whichever NIC they leave by."""
    pipe = streams.filter(pl.col("kind") == "pp")
    pairs = {(int(s), int(d)): int(p) for s, d, p in pipe.select("src", "dst", "pair").iter_rows()}
    senders = name_senders(pairs, case.endpoints["host_id"].to_numpy())
    if not senders:
        return case.messages
    moved = pipe.filter(pl.col("pair").is_in(list(senders)))
    sender = np.array([senders[p] for p in moved["pair"].to_list()])
    row, own = find_rows(moved, case.messages["stream"]), case.messages["src"].to_numpy()
    return case.messages.with_columns(pl.Series("src", np.where(row >= 0, sender[row], own).astype(np.uint32)))


def _put_in_order(spans: pl.DataFrame) -> pl.DataFrame:
    """Spans by rank, lane and start."""
    names = sorted(spans["lane"].unique())
    lane = spans["lane"].cast(pl.Enum(names)).to_physical().to_numpy()
    row = spans["rank"].to_numpy().astype(np.int64) * max(len(names), 1) + lane
    return spans[np.lexsort((spans["start_ns"].to_numpy(), row))]


def begin_together(messages: pl.DataFrame) -> pl.DataFrame:
    """The messages, each from the moment when all who take part had arrived: what is seen before is waiting.

    A message is seen as soon as its sender is there. The hops of a collective end together, so it began with the last
    of them. A send waited for its receiver where it lasts longer than the quickest like it in the step.
    """
    start, end = messages["start_ns"].to_numpy(), messages["end_ns"].to_numpy()
    kind = messages["kind"].cast(pl.Enum(SPAN_KINDS))
    alone = kind.is_in(_BETWEEN_TWO).to_numpy()
    like = np.round(4 * np.log(np.maximum(messages["bytes"].to_numpy(), 1))).astype(np.int64)
    begun = _find_last_starts(kind.to_physical().to_numpy() * (int(like.max(initial=0)) + 1) + like, start, end)
    step, stream = messages["step"].to_numpy(), messages["stream"].to_numpy().astype(np.int64)
    cell = stream * (int(step.max(initial=-1)) + 2) + step + 1
    number, found = number_keys(cell)
    quickest, _ = bound_groups(number, len(found), end - start)
    own = np.where(messages["num"].to_numpy() >= _ENOUGH, np.maximum(start, end - quickest[number]), start)
    known = np.where(step >= 0, np.where(alone, own, begun), start)
    return messages.with_columns(kind.alias("kind"), pl.Series("start_ns", known))


def _find_last_starts(like: Ints, start: Ints, end: Ints) -> Ints:
    """For each message the last start of those like it that end at the same moment."""
    order = np.lexsort((end, like))
    apart = np.flatnonzero(np.diff(like[order], prepend=-1) | (np.diff(end[order], prepend=-(2**62)) > _AT_ONCE_NS))
    found = np.empty(len(like), np.int64)
    last = np.maximum.reduceat(start[order], apart) if len(apart) else start
    found[order] = np.repeat(last, np.diff(apart, append=len(like)))
    return found


def _communication(sent: pl.DataFrame, rank_of: Ints) -> pl.DataFrame:
    """One span per rank for messages of one kind that overlap or touch: channels and directions of one transfer."""
    kinds = pl.Series(SPAN_KINDS)
    order = np.argsort(sent["start_ns"].to_numpy(), kind="stable")
    kind = sent["kind"].to_physical().to_numpy()[order]
    ends = [rank_of[sent[side].to_numpy()[order]] * len(kinds) + kind for side in ("src", "dst")]
    out, into = ends
    starts, ends_ns, sizes = (sent[c].to_numpy()[order] for c in ("start_ns", "end_ns", "bytes"))
    lanes = int(rank_of.max(initial=-1) + 1) * len(kinds)
    lane, begin, end, size, verb = join_touching(out, into, lanes, starts, ends_ns, sizes, _TOUCH_NS)
    number = lane % len(kinds)
    names = pl.Series([f"{k} {v}" for k in kinds for v in _VERBS])
    return pl.DataFrame(
        {
            "rank": (lane // len(kinds)).astype(np.int32),
            "lane": kinds.gather(number),
            "kind": kinds.gather(number),
            "name": names.gather(number * len(_VERBS) + verb),
            "what": number * len(_VERBS) + verb,
            "start_ns": begin,
            "end_ns": end,
            "bytes": size,
        }
    )


def _pauses(busy: pl.DataFrame) -> pl.DataFrame:
    """What lies between a rank's messages: rank start_ns end_ns, what it comes after and since when that was there."""
    rank, start, end, what = (busy[c].to_numpy() for c in ("rank", "start_ns", "end_ns", "what"))
    order = np.lexsort((start, rank))
    rank, start, end, what = rank[order], start[order], end[order], what[order]
    reach = reach_before(rank, end)
    at = np.flatnonzero((reach >= 0) & (start - reach > _SHORTEST_NS))
    return pl.DataFrame(
        {"rank": rank[at], "start_ns": reach[at], "end_ns": start[at], "since_ns": start[at - 1],
         "after": what[at - 1], "before": what[at]}
    )  # fmt: skip


def _is_late(diagnosis: Diagnosis, job: JobDiagnosis, case: Case) -> pl.Expr:
    """Whether a pause belongs to a rank that is known to work late at that time: it does not wait, others do."""
    late = pl.lit(False)
    for finding in diagnosis.findings:
        if finding.job != job.id or finding.kind not in ("slow_compute", "stage_imbalance"):
            continue
        names = set(finding.culprit.id.split(","))
        ranks = [
            i
            for i, e in enumerate(job.observed.endpoints.tolist())
            if {case.address(e), case.host(e)} & names
            or (finding.culprit.type == "stage" and str(case.stages.stage.get(e)) in names)
        ]
        held = (pl.col("start_ns") >= finding.start_ns) & (pl.col("start_ns") < finding.end_ns)
        late = late | (held & pl.col("rank").is_in(ranks))
    return late


def _split_waits(pauses: pl.DataFrame, late: pl.Expr) -> list[pl.DataFrame]:
    """Compute, and the wait that follows it: a rank that was idle for longer than it needs in quick steps waited.

    Pauses between the same two kinds of messages, the same one in the order of its step, hold the same work. Where
    work continues beneath messages a short message makes a long pause, so from message to message it must be late too.
    """
    known = pauses.with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("took"), (pl.col("end_ns") - pl.col("since_ns")).alias("cycle")
    )
    alike, count = _number_alike(known)
    quick, round_trip = (
        pl.Series(quantile_groups(known[c].to_numpy().astype(np.float64), alike, count, 0.25)[alike]).cast(pl.Int64)
        for c in ("took", "cycle")
    )
    longer = (pl.col("took") > (1 + _WAITED) * quick) & (pl.col("cycle") > (1 + _WAITED) * round_trip)
    works = pl.when(longer & ~late).then(quick).otherwise(pl.col("took"))
    split = known.with_columns(pl.col("start_ns").add(works).alias("until_ns"))
    waits = split.filter(pl.col("end_ns") - pl.col("until_ns") > _SHORTEST_NS)
    return [
        _name_spans(split.with_columns(end_ns="until_ns"), "compute", "compute", pl.lit("compute")),
        _name_spans(waits.with_columns(start_ns="until_ns"), "wait", "wait", pl.lit("wait")),
    ]


def _name_spans(spans: pl.DataFrame, lane: str, kind: str, name: pl.Expr) -> pl.DataFrame:
    """Spans without bytes, of one lane and kind."""
    labels = (pl.lit(value).alias(column) for column, value in (("lane", lane), ("kind", kind)))
    return spans.select(
        "rank", *labels, name.alias("name"), "start_ns", "end_ns", pl.lit(None, pl.Int64).alias("bytes")
    )


def _number_alike(pauses: pl.DataFrame) -> tuple[Ints, int]:
    """A number that like pauses of all steps share, and how many there are: the same place of a rank's steps."""
    rank, after, before, step = (
        pauses[c].fill_null(-1).to_numpy().astype(np.int64) for c in ("rank", "after", "before", "step")
    )
    num_names = len(SPAN_KINDS) * len(_VERBS)
    between = (rank * num_names + after) * num_names + before
    cell, found = number_keys(between * (int(step.max(initial=-1)) + 2) + step + 1)
    place, _ = number_places(cell, np.zeros(len(cell), np.int64), len(found))
    alike, found = number_keys(between * (int(place.max(initial=0)) + 1) + place)
    return alike, len(found)


def _microbatches(sent: pl.DataFrame, case: Case, rank_of: Ints) -> pl.DataFrame:
    """Micro-batches of a pipeline: from each message that brings one in to the next that does."""
    pipe = sent.filter(pl.col("kind") == "pp")
    start, rank = pipe["start_ns"].to_numpy(), rank_of[pipe["dst"].to_numpy()]
    step = find_step(start, case.steps)
    inside = np.flatnonzero(step >= 0)
    order = inside[np.lexsort((start[inside], step[inside], rank[inside]))]
    start, step, rank = start[order], step[order], rank[order]
    follows = (np.diff(rank) == 0) & (np.diff(step) == 0)
    first = np.flatnonzero(np.r_[True, ~follows]) if len(order) else np.zeros(0, np.int64)
    number = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    at = np.flatnonzero(follows)
    spans = pl.DataFrame(
        {"rank": rank[at].astype(np.int32), "number": number[at], "start_ns": start[at], "end_ns": start[at + 1]}
    )
    return _name_spans(spans, "micro-batches", "microbatch", pl.format("micro-batch {}", "number"))


def _steps(job: JobDiagnosis, num_ranks: int) -> pl.DataFrame:
    """The steps, on every rank."""
    ranks = pl.DataFrame({"rank": range(num_ranks)}, schema={"rank": pl.Int32})
    return _name_spans(ranks.join(job.steps, how="cross"), "steps", "step", pl.format("step {}", "index"))


def _number_steps(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add `step`; null for what lies in none."""
    at = pl.Series("step", find_step(spans["start_ns"].to_numpy(), steps))
    return spans.with_columns(at.replace(-1, None))
