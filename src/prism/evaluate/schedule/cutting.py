"""How a worker's queue becomes its next trial: large shares cut, small datasets merged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prism.evaluate.schedule.cluster import WorkerState
from prism.evaluate.schedule.packing import Share
from prism.evaluate.schedule.pools import Pool
from prism.evaluate.schedule.trials import Part, Trial

_CAUTION = 2.0  # standard deviations by which a score may take longer than expected and still end in time


@dataclass(frozen=True, slots=True, kw_only=True)
class CuttingConfig:
    """Expected seconds of inference."""

    min_part_s: float = 1.0  # shorter parts are not cut off: handing one out costs about a tenth of a second
    max_part_s: float = 600.0  # what a lost worker can cost, and how long a higher priority waits
    merge_s: float = 10.0  # datasets shorter than this share a trial, up to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How a checkpoint's evaluation stands when a trial is cut."""

    crowded: bool = False  # more workers than datasets that wait
    left_s: float = math.inf  # until all should be scored


def cut_trial(
    state: WorkerState, pools: Mapping[str, Pool], trial_id: str, config: CuttingConfig, outlook: Outlook
) -> Trial | None:
    """The next trial of a worker: a piece of its share, or several small datasets; None when its queue is of no use."""
    parts: list[Part] = []
    seconds = 0.0
    while state.queue:
        share = state.queue[0]
        pool = pools[share.key[1]]
        samples, share_s = _cut(pool, share, config, outlook)
        if parts and seconds + share_s > config.merge_s:
            break
        part = pool.take(samples)
        if part is None:  # others have taken it all
            state.queue.pop(0)
            continue
        parts.append(part)
        seconds += _expect_s(state, pool, parts) + part.samples * pool.prior.infer_s
        left = share.samples - part.samples
        state.queue.pop(0)
        if left > 0:
            state.queue.insert(0, Share(key=share.key, samples=left))
        if left > 0 or seconds >= config.merge_s:
            break
    if not parts:
        return None
    pool = pools[parts[0].dataset]
    shrink = max(pools[part.dataset].shrink for part in parts)
    return Trial(id=trial_id, checkpoint=pool.key[0], parts=tuple(parts), shrink=shrink, expected_s=seconds)


def _cut(pool: Pool, share: Share, config: CuttingConfig, outlook: Outlook) -> tuple[int, float]:
    """How many samples of a share to run now, and how long they take.

    A fixed part of what is left each time: long at first, short in the end, so that others can take over what is left
    when run times turn out wrong, and so that little is left to score after the last part. An unproven run time is
    tried on as little as possible. Where workers have no other datasets to go to, more is to be gained from that. And
    a part should leave time for its score.
    """
    samples = min(share.samples, pool.num_waiting)
    infer_s = pool.prior.infer_s
    total_s = samples * infer_s
    # A part is short when both its inference and its score are: the last score ends the run.
    longest_s = max(infer_s, pool.prior.score_s)
    if not pool.dataset.splittable or infer_s <= 0 or samples * longest_s < 2 * config.min_part_s:
        return samples, total_s
    aim_s = total_s / (8 if outlook.crowded else 2) if pool.prior.measured else 0.0
    score_s = pool.prior.score_s * math.exp(_CAUTION * pool.prior.score_spread)
    aim_s = min(aim_s, outlook.left_s * infer_s / (infer_s + score_s))
    least_s = config.min_part_s * infer_s / longest_s
    aim_s = min(max(aim_s, least_s), config.max_part_s)
    count = min(samples, max(1, round(aim_s / infer_s)))
    return count, count * infer_s


def _expect_s(state: WorkerState, pool: Pool, parts: list[Part]) -> float:
    """What comes before the inference of the last of these parts."""
    begins = len(parts) == 1 and state.checkpoint != pool.checkpoint.name
    held = pool.dataset.name in state.held or any(part.dataset == pool.dataset.name for part in parts[:-1])
    return pool.prior.start_s * begins + pool.prior.setup_s * (not held)
