"""Something for every page, made in a second: no diagnosis is run for it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from served_folder import make_characterization, make_evaluation, make_run, make_watch
from test_serve_truth import EPOCH_NS, PRINTED, SECOND, finding, job_document, write_diagnosis

from prism.records import SPANS


def make_small_folder(root: Path, *, characterized: bool = True) -> Path:
    """Two diagnosed jobs, one of which hangs, a run, an evaluation, a watch, reports."""
    hang = finding("job-1", ("host", "node-1-0"), 10.0, 70.0, kind="hang")
    write_diagnosis(root / "report", [job_document(1, state="stopped"), job_document(2)], [hang])
    rows = [
        {
            "job": "job-1", "rank": rank, "lane": kind, "kind": kind, "name": kind, "step": 0,
            "start_ns": EPOCH_NS + at * SECOND, "end_ns": EPOCH_NS + (at + 2) * SECOND,
        }
        for rank in range(2)
        for at, kind in ((0, "compute"), (3, "dp"), (6, "wait"))
    ]  # fmt: skip
    frame = pl.DataFrame([{name: row.get(name) for name in SPANS.required} for row in rows], schema=SPANS.required)
    frame.write_parquet(root / "report" / "timeline.parquet")
    make_run(root / "runs" / "pretrain")
    make_evaluation(root / "evaluation")
    make_watch(root / "watch")
    if characterized:
        make_characterization(root / "datacenter")
    for kind, document in PRINTED.items():
        (root / f"{kind}.json").write_text(json.dumps({"schema": f"prism.{kind}/1", **document}))
    return root
