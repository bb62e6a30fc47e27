"""torch.distributed.checkpoint where not all ranks run: the coordinator plans with plans that are copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from prism.emulate.inside.after_import import change_after_import
from prism.emulate.inside.session import Session


def plan_for_absent_ranks(session: Session) -> None:
    """Live ranks keep the shards that they hold; shards of ranks that do not run may be missing."""

    def change(planner: ModuleType) -> None:
        planner.dedup_save_plans = _prefer_live(session, planner.dedup_save_plans)  # type: ignore[attr-defined]
        planner._validate_global_plan = _accept_gaps(session, planner._validate_global_plan)  # type: ignore[attr-defined]

    change_after_import("torch.distributed.checkpoint.default_planner", change)


def _prefer_live(session: Session, dedup: Callable[..., Any]) -> Callable[..., Any]:
    """A rank that does not run has its twin's plan; what both would write is written by the one that runs."""

    def dedup_save_plans(all_plans: list[Any], *args: Any) -> Any:
        live = session.plan.live_ranks
        if len(all_plans) == session.plan.world_size > len(live):
            held = {item.index for rank in live for item in all_plans[rank].items}
            all_plans = [
                plan if rank in live else replace(plan, items=[i for i in plan.items if i.index not in held])
                for rank, plan in enumerate(all_plans)
            ]
        return dedup(all_plans, *args)

    return dedup_save_plans


def _accept_gaps(session: Session, validate: Callable[..., Any]) -> Callable[..., Any]:
    """The check that all shards make the whole tensor is for ranks that run."""

    def validate_global_plan(*args: Any) -> Any:
        found = validate(*args)
        if len(session.plan.live_ranks) >= session.plan.world_size:
            return found
        return [] if isinstance(found, list) else True  # torch 2.13 lists errors, 2.11 says whether all is well

    return validate_global_plan
