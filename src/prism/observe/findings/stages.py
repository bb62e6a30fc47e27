"""Heavy stages: stages that have more work than the others from the beginning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.cost import price_slow_work
from prism.observe.findings.scoring import PER_STEP
from prism.observe.findings.verdicts import Proposal
from prism.observe.findings.windows import Window
from prism.observe.findings.work_table import WorkTable, tabulate_work
from prism.records.findings import Alternative

_UNEVEN = 0.20  # a stage this much heavier than the others
# The last one computes the loss too: the logits of a large vocabulary weigh as much as a layer.
_UNEVEN_LAST = levels.SHARE_MAJORITY
_LEAST = levels.TWO_PER_MILLE  # of the work: smaller differences are ignored
# Times its excess of weights: it may compute its gradients at once, while others do so later.
_PER_WEIGHT = levels.RATIO_LONGER


def find_heavy_stages(case: Case, table: WorkTable | None = None) -> list[Proposal]:
    """A stage whose ranks all work longer than those of the other stages, all the time."""
    table = table or tabulate_work(case)
    last = table.num_stages - 1
    if last < 2 or case.stages.confidence < 0.75 or _is_interleaved(case, table, last):
        return []
    whole = _work_of_stages(table)
    if len(whole) < 3:
        return []
    found = []
    expected = _expect_of_last(case, last)
    for s, (seconds, noise) in whole.items():
        others = float(np.median([w for k, (w, _) in whole.items() if k != s]))
        more = seconds / others - 1
        if more < (expected if s == last else _UNEVEN) + 3 * noise or not _is_slow_forward(table, s, last):
            continue
        window = Window(0, case.steps.height - 1, more, 1.0)
        cost = price_slow_work(case, table, table.endpoints[table.stage == s].tolist(), window, by_design=True)
        evidence = (
            f"stage {s} works {1000 * seconds:.1f} ms on a micro-batch, the other stages {1000 * others:.1f} ms "
            f"({100 * more:.0f} % more); {cost.words}"
        )
        told = case.finding("stage_imbalance", culprit("stage", str(s)), 0, case.steps.height - 1, lost_s=cost.lost_s,
                            score=min(0.95, 0.5 + more, cost.margin), evidence=evidence)  # fmt: skip
        found.append(Proposal(finding=told, gain=case.steps.height * max(more / max(noise, _LEAST) - PER_STEP, 0.0)))
    found.sort(key=lambda p: -p.finding.lost_gpu_seconds)
    others_too = [p.finding for p in found[1:]]
    listed = tuple(Alternative(kind=f.kind, culprit=f.culprit, score=round(f.score / 2, 3)) for f in others_too)
    return [replace(p, seconds=listed, by_design=True) for p in found[:1]]


def _expect_of_last(case: Case, last: int) -> float:
    """How much heavier its output layer may make the last stage: work is proportional to weights, as are gradients."""
    sent = case.messages.lazy().filter((pl.col("kind") == "dp") & (pl.col("step") >= 0)).select("src", "bytes")
    by_rank = sent.group_by("src").agg(pl.col("bytes").sum()).collect()
    at, size = case.stage_of[by_rank["src"].to_numpy()], by_rank["bytes"].to_numpy()
    between = (at > 0) & (at < last)
    if not between.any() or not (at == last).any():
        return _UNEVEN_LAST
    more = float(np.median(size[at == last]) / np.median(size[between])) - 1
    return _UNEVEN + _PER_WEIGHT * max(0.0, more)


def _is_slow_forward(table: WorkTable, stage: int, last: int) -> bool:
    """Whether a stage takes longer forward too: on its way back a message may find a rank busy with another."""
    if stage == last:
        return True  # seen only as a whole
    values = {s: table.phases["forward"][table.stage == s] for s in range(1, last)}
    middle = {s: float(np.median(v[~np.isnan(v)])) for s, v in values.items() if not np.isnan(v).all()}
    others = [m for s, m in middle.items() if s != stage]
    return bool(others) and middle.get(stage, 0.0) > (1 + 0.7 * _UNEVEN) * float(np.median(others))


def _is_interleaved(case: Case, table: WorkTable, last: int) -> bool:
    """Whether the last stage sends to the first: stages then hold several pieces, and a turn is not a whole one."""
    edge = {
        0: set(table.endpoints[table.stage == 0].tolist()),
        last: set(table.endpoints[table.stage == last].tolist()),
    }
    pairs = case.streams.filter(pl.col("kind") == "pp").select("src", "dst")
    return any(s in edge[last] and d in edge[0] for s, d in pairs.iter_rows())


def _work_of_stages(table: WorkTable) -> dict[int, tuple[float, float]]:
    """Seconds of a forward and a backward of one micro-batch by stage, where both are seen, and their noise."""
    whole = {}
    for s in range(1, table.num_stages):
        rows = table.stage == s
        if s == table.num_stages - 1:
            values = table.phases["turn"][rows] if "turn" in table.phases else np.empty((0, 0))
        elif "forward" in table.phases and "backward" in table.phases:
            values = table.phases["forward"][rows] + table.phases["backward"][rows]
        else:
            continue
        known = values[~np.isnan(values)]
        if len(known) >= 3:
            middle = float(np.median(known))
            whole[s] = middle, float(1.4826 * np.median(np.abs(known - middle)) / middle / np.sqrt(len(known)))
    return whole
