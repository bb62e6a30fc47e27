"""Hot experts: a rank that receives far more tokens than the others in every step, and computes longer."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case
from prism.observe.findings.scoring import PER_STEP
from prism.observe.findings.verdicts import Proposal, say_surely
from prism.observe.findings.windows import spread_of

_HOT = levels.RATIO_LONGER  # times what similar streams carry
_AS_OFTEN = levels.SHARE_SMALL  # by which a hot stream is sent more or less often than others
_LEAST = levels.SHARE_NEGLIGIBLE  # of a size: what differs by less says nothing


def find_hot_expert(case: Case) -> list[Proposal]:
    """The rank that all streams with far more tokens than usual go to, or come back from."""
    routed = case.streams.filter((pl.col("role") == "routed") & (pl.col("num") >= case.steps.height))
    if routed.height < levels.MIN_COMPARED or case.steps.height < levels.MIN_SAMPLES:
        return []
    usual, often = float(routed["bytes"].median()), float(routed["num"].median())  # type: ignore[arg-type]
    # If its sizes seldom differ, the stream of a hot expert is labelled as another kind.
    as_often = (pl.col("num") / often - 1).abs() <= _AS_OFTEN
    hot = case.streams.filter(as_often & (pl.col("bytes") >= _HOT * usual) & (pl.col("role") != "rare"))
    if hot.is_empty():
        return []
    touched = np.bincount(np.r_[hot["src"].to_numpy(), hot["dst"].to_numpy()], minlength=len(case.hosts))
    most = np.flatnonzero(touched == touched.max())
    if touched.max() < hot.height:
        return []  # More than one rank is hot, or something else is large.
    # Tokens go out before they come back: of two ranks that share all hot streams, the first one to be sent to is hot.
    own = case.messages.filter((pl.col("step") >= 0) & pl.col("stream").is_in(hot["stream"].implode()))
    since = own["start_ns"] - case.steps["start_ns"].gather(own["step"])
    first = own.select("dst", "stream", since.alias("at")).group_by("dst", "stream").agg(pl.col("at").median())
    (rank,) = first.sort("at")["dst"].head(1).to_list() if len(most) > 1 else (int(most[0]),)
    sizes = np.log(routed["bytes"].to_numpy().astype(np.float64))
    ratio = float(hot["bytes"].median()) / usual  # type: ignore[arg-type]
    nats = np.log(ratio) / max(spread_of(sizes), _LEAST) * hot.height
    longer = float(hot["duration_ns"].median()) - float(routed["duration_ns"].median())  # type: ignore[arg-type]
    lost = max(longer, 0.0) / 1e9 * int(hot["num"].sum()) / len(most)
    evidence = (
        f"{hot.height} streams of tokens to it and back carry {ratio:.1f} times what others do, in every step; their "
        f"transfers alone cost {1000 * lost / case.steps.height:.1f} ms of a step"
    )
    told = case.finding(
        "load_imbalance", case.name_worker([int(rank)]), 0, case.steps.height - 1, lost_s=lost,
        score=say_surely(1 - np.sort(touched)[-2] / touched.max()), evidence=evidence,
    )  # fmt: skip
    return [Proposal(finding=told, gain=case.steps.height * max(float(nats) - PER_STEP, 0.0))]
