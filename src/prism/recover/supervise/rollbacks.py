"""Which checkpoint to roll back to after a loss spike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from prism.recover.supervise.losses import LossPolicy, Spike


@dataclass(slots=True, kw_only=True)
class RollbackHistory:
    """Rollbacks since the run last trained past a spike."""

    first_step: int = -1  # of the last spike
    resume_step: int = -1  # the step that was rolled back to
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to do about a spike."""

    kind: Literal["go back", "leave alone", "give up"]
    text: str
    resume_step: int = 0
    tries: int = 1  # rollbacks at this place, including this one


def answer_spike(spike: Spike, saved_steps: list[int], past: RollbackHistory, policy: LossPolicy) -> Answer:
    """Roll back to before the spike, or further if that did not help. Without a checkpoint, leave the job alone."""
    name = f"loss {spike.loss:g} from step {spike.first_step}"
    again = past.count > 0 and spike.first_step <= past.first_step + policy.patience + policy.lead_batches
    if not saved_steps:
        return Answer(
            kind="leave alone", text=f"{name}; there is no better checkpoint to go back to, so the job is left alone"
        )
    if again and math.isfinite(spike.loss):
        # It came back after a rollback, so it is not chance: the schedule or the data may have changed on purpose.
        return Answer(kind="leave alone", text=f"{name}, again after going back; taken as the new level")
    if again and past.count >= policy.max_rollbacks:
        return Answer(
            kind="give up",
            text=f"{name}: {past.count} rollbacks did not help; a person must look at data and settings",
        )
    limit = min(spike.first_step, past.resume_step) if again else spike.first_step
    good = [step for step in saved_steps if step < limit]
    if not good:
        if again:
            return Answer(kind="give up", text=f"{name}, from every checkpoint there is; a person must look")
        return Answer(kind="leave alone", text=f"{name}; no checkpoint is older than that, so the job is left alone")
    return Answer(kind="go back", text=name, resume_step=max(good), tries=past.count + 1 if again else 1)
