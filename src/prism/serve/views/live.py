"""The Live page: jobs with their last steps, the feed of findings, parts at risk, and queues."""

from __future__ import annotations

import math
from typing import Any

from prism.serve.shapes.cluster import LiveDocument, QueueRow, RiskRow
from prism.serve.snapshot import Snapshot
from prism.serve.views.cluster import describe_cluster
from prism.serve.views.host import describe_feed
from prism.serve.views.reports import list_reports

_MOST_EVENTS = 60
_MOST_RISKS = 10


def describe_live(snapshot: Snapshot) -> LiveDocument:
    """The page's document."""
    cluster = describe_cluster(snapshot)
    feed = describe_feed(snapshot, limit=_MOST_EVENTS)
    return LiveDocument(
        counts=cluster.counts,
        jobs=cluster.jobs,
        jobs_left_out=cluster.jobs_left_out,
        events=feed.events,
        num_events=feed.total,
        risks=_list_risks(snapshot),
        queues=_list_queues(snapshot),
    )


def _list_risks(snapshot: Snapshot) -> tuple[RiskRow, ...]:
    newest = next((source for source in list_reports(snapshot) if source.kind == "prediction"), None)
    rows = [] if newest is None else [row for row in newest.document["risks"] if isinstance(row, dict)]
    ordered = sorted(rows, key=lambda row: -(_number(row.get("risk")) or 0.0))
    return tuple(
        RiskRow(
            id=str(row.get("id", "")),
            risk=_number(row.get("risk")),
            reasons=tuple(map(str, row.get("reasons") or ())),
            path=newest.path if newest is not None else "",
        )
        for row in ordered[:_MOST_RISKS]
    )


def _list_queues(snapshot: Snapshot) -> tuple[QueueRow, ...]:
    newest = next((source for source in list_reports(snapshot) if source.kind == "placement"), None)
    if newest is None:
        return ()
    return tuple(
        QueueRow(
            policy=str(policy),
            mean_queue_s=_number(found.get("mean_queue_s")),
            p99_queue_s=_number(found.get("p99_queue_s")),
            path=newest.path,
        )
        for policy, found in newest.document["policies"].items()
        if isinstance(found, dict)
    )


def _number(value: Any) -> float | None:
    """A number of a document that another command wrote; None if it is no number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
