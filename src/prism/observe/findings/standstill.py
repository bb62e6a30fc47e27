"""Standstills: messages of an interrupted step that were due and never sent, and transfers that are stuck."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case

AT_ONCE = levels.THREE_PER_MILLE  # of a step: messages due this close together are due at the same moment
_SMALL = 0.7  # of a pair's smallest message: one that was cut short
_USUAL_SIZE = levels.MIN_COMPARED  # messages of a pair of one size
_SMALLEST = 0.05  # quantile: sampled sizes differ by chance
_TEMPLATES = levels.MIN_SAMPLES  # steps that show when each message is due
_LATE = levels.SHARE_SMALL  # of a step: how far from when it is due a message may come
_LONGER = levels.SHARE_MINOR  # of a step: by how much one that breaks off is longer, where some continue for longer
_FEW = levels.MIN_TWO  # endpoints that began a step which is not the end of the one before


@dataclass(frozen=True, slots=True)
class Standstill:
    """Messages of the last whole step and of the one that broke off, in nanoseconds since the first of them began."""

    due: pl.DataFrame  # src dst due over owed: when each begins and ends, whether it was never sent
    stuck: pl.DataFrame  # src dst start_ns bytes: transfers that were begun and made no progress
    last_sent: dict[int, float]  # by endpoint, when it last sent
    last_taken: dict[int, float]  # and when it was last sent to
    until_ns: int  # when the last message was sent
    step_ns: int  # of a usual step


def find_stalled(case: Case, begin_ns: int, end_ns: int) -> pl.DataFrame:
    """src dst start_ns end_ns bytes: last messages of pairs, begun in a stretch of time, far smaller than others."""
    stream, start = (case.messages[c].to_numpy() for c in ("stream", "start_ns"))
    steady = np.bincount(stream) >= _USUAL_SIZE
    columns = ["src", "dst", "start_ns", "end_ns", "bytes"]
    # A few numbers, such as headers and acknowledgements of a transport, may follow what was cut; they were not cut.
    tensors = case.messages["bytes"].to_numpy() >= levels.SMALL_MESSAGE_BYTES
    rows = np.flatnonzero((start >= begin_ns) & (start <= end_ns) & tensors)
    if steady[stream[rows]].all():
        return case.messages.select(columns).clear()
    sent = case.messages.select(*columns, "stream")[rows].sort("start_ns")
    last = sent.group_by("src", "dst", maintain_order=True).tail(1)
    last = last.filter(~steady[last["stream"].to_numpy()])
    if last.is_empty():
        return last.select(columns)
    usual = case.messages.filter(steady[stream]).group_by("src", "dst").agg(pl.col("bytes").min().alias("least"))
    cut = last.join(usual, on=["src", "dst"]).filter(pl.col("bytes") < _SMALL * pl.col("least"))
    return cut.select(columns)


def find_standstill(case: Case, last: int, until: int) -> Standstill | None:
    """What is owed and stuck at `until`, after the whole step `last`.

    None if no further step was begun: the job ended or paused.
    """
    starts = case.steps["start_ns"].to_numpy()
    usual = round(float(np.median(case.length_s)) * 1e9)
    while last + 1 < len(starts) and starts[last + 1] <= until and until > starts[last] + (2 + _LONGER) * usual:
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
        "src", "dst", "kind", "start_ns", "bytes", "seen", offset=(pl.col("start_ns") - start_ns).cast(pl.Float64)
    )
    sent = sent.sort("offset").join_asof(
        due.select("src", "dst", "due", "least", due_kind="kind"), left_on="offset", right_on="due", by=["src", "dst"],
        strategy="nearest", tolerance=_LATE * usual, check_sortedness=False,
    )  # fmt: skip
    # A message that was cut short has its own size, and is of the kind that was due at that time.
    odd = pl.col("seen") < _USUAL_SIZE
    sent = sent.with_columns(kind=pl.when(odd).then(pl.coalesce("due_kind", "kind")).otherwise("kind"))
    stuck = _find_stuck(case, sent, start_ns + length_ns, until)
    if stuck.is_empty() and sent.filter(pl.col("due") >= length_ns)["src"].n_unique() < _FEW:
        return None
    out, into = (dict(sent.group_by(e).agg(pl.col("offset").max()).iter_rows()) for e in ("src", "dst"))
    return Standstill(_mark_owed(due, sent, length_ns), stuck, out, into, until - start_ns, usual)


def _expect(case: Case, last: int, usual_ns: int) -> pl.DataFrame | None:
    """src dst kind due over least: what whole steps up to `last` sent, when, and how small such a message ever is."""
    steady = case.messages.filter(pl.col("role") != "rare")
    counts = np.bincount(steady.filter(pl.col("step") >= 0)["step"].to_numpy(), minlength=case.steps.height)
    usual = float(np.median(counts))
    like = np.flatnonzero(np.abs(counts[: last + 1] - usual) <= 0.05 * usual)[-_TEMPLATES:]
    if not len(like):
        return None
    starts = case.steps.select(pl.col("index").alias("step"), pl.col("start_ns").alias("step_ns"))
    template = steady.filter(pl.col("step").is_in(like)).join(starts, on="step").sort("start_ns")
    # After a lost record a position is that of the next message; a mean of the two is no time at all.
    due = template.group_by("src", "dst", "kind", "stream", "place").agg(
        (pl.col("start_ns") - pl.col("step_ns")).quantile(0.5, "lower").alias("due"),
        (pl.col("end_ns") - pl.col("step_ns")).quantile(0.5, "lower").alias("over"),
        pl.len().alias("num"),
    )
    # Routed tokens have any size.
    size = pl.when(pl.col("role").first() == "routed").then(0.0).otherwise(pl.col("bytes").quantile(_SMALLEST))
    due = due.filter(pl.col("num") * 2 > len(like)).join(
        steady.group_by("stream").agg(size.alias("least")), on="stream"
    )
    least = pl.col("least").min().over("src", "dst", (pl.col("due") / (AT_ONCE * usual_ns)).round())
    return due.select("src", "dst", "kind", "due", "over", least)


def _find_stuck(case: Case, sent: pl.DataFrame, begin_ns: int, until: int) -> pl.DataFrame:
    """src dst start_ns bytes: last messages of pairs that are far smaller than what was due when they came."""
    last = sent.group_by("src", "dst", maintain_order=True).tail(1)
    # What is always as small, such as a norm at the end of a step, was not cut.
    cut = last.filter((pl.col("bytes") < _SMALL * pl.col("least")) & (pl.col("seen") < _USUAL_SIZE))
    cut = cut.select("src", "dst", "start_ns", "bytes")
    return pl.concat([cut, find_stalled(case, begin_ns, until).drop("end_ns")]).unique(maintain_order=True)


def _mark_owed(due: pl.DataFrame, sent: pl.DataFrame, length_ns: int) -> pl.DataFrame:
    """The messages due, and whether their sender still owes them.

    What an endpoint owes is what is due after the last of its kind that it sent: a record may be lost, but whoever sent
    what comes later has sent it, and whoever went on after it would have come has received it. Kinds do not wait for
    each other: stages pass activations on while the gradients of others stand still.
    """
    latest = sent.group_by("src", "kind").agg(pl.col("offset").max().alias("sent_at")).sort("sent_at")
    dues = due.select("src", "kind", "due").sort("due")
    at = latest.join_asof(
        dues, left_on="sent_at", right_on="due", by=["src", "kind"], strategy="nearest", check_sortedness=False
    ).select("src", "kind", pl.col("due").alias("reached"))
    margin = AT_ONCE * length_ns
    known = due.join(at, on=["src", "kind"], how="left").join(
        at.rename({"src": "dst", "reached": "went_on"}), on=["dst", "kind"], how="left"
    )
    owed = (pl.col("due") > pl.col("reached").fill_null(-1.0) + margin) & (
        pl.col("went_on").fill_null(-1.0) <= pl.col("over") + margin
    )
    return known.select("src", "dst", "kind", "due", "over", owed=owed)
