"""The timeline: what each rank sent and received, computed and waited for, step by step, as SPANS."""

from __future__ import annotations

import polars as pl

from prism.observe.diagnose import Diagnosis, JobDiagnosis, open_case
from prism.observe.findings.case import Case, find_step
from prism.records.spans import SPANS

_SHORTEST_NS = 20_000  # shorter pauses between messages are not worth a span
_TOUCH_NS = 2_000  # messages of one kind closer than this are one transfer in pieces
_BETWEEN_TWO = ("pp", "cp")  # kinds of messages that one rank sends to one other
_ENOUGH = 2  # messages of a voice in a step: one of them found its receiver waiting
_AT_ONCE_NS = 1_000  # ends so close are one moment
_WAITED = 0.15  # a pause longer than the rank's quick ones by this share holds a wait


def build_timeline(diagnosis: Diagnosis) -> pl.DataFrame:
    """SPANS of every job; a rank is the position of its endpoint in the job's list."""
    parts = [_spans_of(diagnosis, job) for job in diagnosis.jobs]
    return pl.concat(parts) if parts else SPANS.empty()


def _spans_of(diagnosis: Diagnosis, job: JobDiagnosis) -> pl.DataFrame:
    case = open_case(diagnosis.traffic, job, 0)
    ranks = pl.DataFrame(
        {"endpoint": job.observed.endpoints, "rank": range(len(job.observed.endpoints))},
        schema={"endpoint": pl.UInt32, "rank": pl.Int32},
    )
    ends = _both_ends(begin_together(case.messages), ranks)
    busy = _communication(ends)
    idle = _number_steps(_pauses(busy), job.steps)
    spans = [
        busy,
        *_split_waits(idle, _is_late(diagnosis, job, case)),
        _microbatches(ends, case, ranks),
        _steps(job, len(ranks)),
    ]
    columns = ["rank", "lane", "kind", "name", "start_ns", "end_ns", "bytes"]
    numbered = _number_steps(pl.concat([s.select(columns) for s in spans]), job.steps)
    return SPANS.conform(numbered.with_columns(job=pl.lit(job.id)), job.id).sort("rank", "lane", "start_ns")


def begin_together(messages: pl.DataFrame) -> pl.DataFrame:
    """The messages, each from the moment when all who take part had come: what is seen before is waiting.

    A message is seen as soon as its sender is there. The hops of a collective end together, so it began with the last
    of them. A send waited for its receiver where it lasts longer than the quickest like it in the step.
    """
    took = pl.col("end_ns") - pl.col("start_ns")
    like = (4 * pl.col("bytes").clip(1).log()).round().cast(pl.Int32).alias("like")
    ordered = messages.with_columns(like).sort("kind", "like", "end_ns")
    apart = (
        (pl.col("end_ns").diff() > _AT_ONCE_NS)
        | (pl.col("like").diff() != 0)
        | (pl.col("kind") != pl.col("kind").shift())
    )
    ordered = ordered.with_columns(apart.fill_null(True).cum_sum().alias("call"))
    together = pl.col("start_ns").max().over("call")
    quick = pl.col("end_ns") - took.min().over("voice", "step")
    alone = pl.col("kind").is_in(_BETWEEN_TWO)
    begun = pl.when(~alone).then(together).when(pl.col("num") >= _ENOUGH).then(pl.max_horizontal("start_ns", quick))
    known = pl.when(pl.col("step") >= 0).then(begun.otherwise("start_ns")).otherwise("start_ns")
    return ordered.with_columns(known.alias("start_ns"))


def _both_ends(messages: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Every message twice, once for each of its ranks."""
    sides = [
        messages.join(ranks, left_on=side, right_on="endpoint").select(
            "rank", "kind", "start_ns", "end_ns", "bytes", pl.lit(verb).alias("verb")
        )
        for side, verb in (("src", "send"), ("dst", "receive"))
    ]
    return pl.concat(sides)


def _communication(ends: pl.DataFrame) -> pl.DataFrame:
    """One span per rank for messages of one kind that overlap or touch: channels and directions of one transfer."""
    ordered = ends.sort("rank", "kind", "start_ns")
    reach = pl.col("end_ns").cum_max().shift(1).over("rank", "kind")
    fresh = (pl.col("start_ns") > reach + _TOUCH_NS).fill_null(True)
    return (
        ordered.with_columns(fresh.cum_sum().over("rank", "kind").alias("span"))
        .group_by("rank", "kind", "span", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("bytes").sum(),
            _verb().alias("verb"),
        )
        .select("rank", pl.col("kind").alias("lane"), "kind", (pl.col("kind") + " " + pl.col("verb")).alias("name"),
                "start_ns", "end_ns", "bytes")
    )  # fmt: skip


def _verb() -> pl.Expr:
    both = pl.col("verb").n_unique() > 1
    return pl.when(both).then(pl.lit("exchange")).otherwise(pl.col("verb").first()).first()


def _pauses(busy: pl.DataFrame) -> pl.DataFrame:
    """What lies between a rank's messages: rank start_ns end_ns, what it comes after and since when that was there."""
    ordered = busy.sort("rank", "start_ns")
    reach = pl.col("end_ns").cum_max().shift(1).over("rank")
    return (
        ordered.with_columns(
            reach.alias("from_ns"),
            pl.col("name").shift(1).over("rank").alias("after"),
            pl.col("start_ns").shift(1).over("rank").alias("since_ns"),
        )
        .filter(pl.col("start_ns") - pl.col("from_ns") > _SHORTEST_NS)
        .select("rank", pl.col("from_ns").alias("start_ns"), pl.col("start_ns").alias("end_ns"), "since_ns", "after",
                pl.col("name").alias("before"))
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
    work goes on beneath messages a short message makes a long pause, so from message to message it must be late too.
    """
    place = pl.int_range(pl.len()).over("rank", "step", "after", "before").alias("place")
    known = pauses.with_columns(place, (pl.col("end_ns") - pl.col("start_ns")).alias("took"),
                                (pl.col("end_ns") - pl.col("since_ns")).alias("cycle"))  # fmt: skip
    alike = ("rank", "after", "before", "place")
    quick, round_trip = (pl.col(c).quantile(0.25, "lower").cast(pl.Int64).over(*alike) for c in ("took", "cycle"))
    longer = (pl.col("took") > (1 + _WAITED) * quick) & (pl.col("cycle") > (1 + _WAITED) * round_trip)
    works = pl.when(longer & ~late).then(quick).otherwise(pl.col("took"))
    split = known.with_columns(pl.col("start_ns").add(works).alias("until_ns"))
    empty = pl.lit(None, pl.Int64).alias("bytes")

    def name(kind: str) -> list[pl.Expr]:
        return [pl.lit(kind).alias(c) for c in ("lane", "kind", "name")]

    compute = split.select("rank", "start_ns", pl.col("until_ns").alias("end_ns"), *name("compute"), empty)
    waits = split.filter(pl.col("end_ns") - pl.col("until_ns") > _SHORTEST_NS)
    return [compute, waits.select("rank", pl.col("until_ns").alias("start_ns"), "end_ns", *name("wait"), empty)]


def _microbatches(ends: pl.DataFrame, case: Case, ranks: pl.DataFrame) -> pl.DataFrame:
    """Micro-batches of a pipeline: from each message that brings one in to the next that does."""
    pipe = ends.filter((pl.col("kind") == "pp") & (pl.col("verb") == "receive"))
    pipe = pipe.with_columns(pl.Series("step", find_step(pipe["start_ns"].to_numpy(), case.steps))).filter(
        pl.col("step") >= 0
    )
    ordered = pipe.sort("rank", "step", "start_ns").with_columns(
        pl.int_range(pl.len()).over("rank", "step").alias("number"),
        pl.col("start_ns").shift(-1).over("rank", "step").alias("until_ns"),
    )
    return ordered.drop_nulls("until_ns").select(
        "rank",
        pl.lit("micro-batches").alias("lane"),
        pl.lit("microbatch").alias("kind"),
        pl.format("micro-batch {}", "number").alias("name"),
        "start_ns",
        pl.col("until_ns").alias("end_ns"),
        pl.lit(None, pl.Int64).alias("bytes"),
    )


def _steps(job: JobDiagnosis, num_ranks: int) -> pl.DataFrame:
    """The steps, on every rank."""
    ranks = pl.DataFrame({"rank": range(num_ranks)}, schema={"rank": pl.Int32})
    return ranks.join(job.steps, how="cross").select(
        "rank",
        pl.lit("steps").alias("lane"),
        pl.lit("step").alias("kind"),
        pl.format("step {}", "index").alias("name"),
        "start_ns",
        "end_ns",
        pl.lit(None, pl.Int64).alias("bytes"),
    )


def _number_steps(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add `step`; null for what lies in none."""
    at = find_step(spans["start_ns"].to_numpy(), steps)
    return spans.with_columns(pl.Series("step", at, dtype=pl.Int32)).with_columns(
        pl.when(pl.col("step") >= 0).then("step").alias("step")
    )
