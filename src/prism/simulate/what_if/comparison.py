"""Solve a plan before and after a change, and say where the time went."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from prism.errors import BadConfigError
from prism.simulate.costs import ClusterCosts
from prism.simulate.solving.critical_path import find_critical_path, share_path
from prism.simulate.solving.pricing import CostModel
from prism.simulate.solving.solver import Solution, solve
from prism.simulate.solving.usage import measure_usage, sum_usage
from prism.simulate.what_if.background import add_background
from prism.simulate.what_if.changes import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One solved plan in figures: step times, what the critical path consists of, what ranks spend time on."""

    solution: Solution
    path: pl.DataFrame
    usage: pl.DataFrame  # what, mean_ns, share

    @property
    def step_ns(self) -> list[int]:
        """Step times in the order of the steps."""
        return [int(ns) for ns in self.solution.step_ns]

    def share(self, by: str) -> pl.DataFrame:
        """How much of the critical path each kind, name, rank or group holds."""
        return share_path(self.path.with_columns(pl.col(by).fill_null("none") if by == "group" else pl.col(by)), by)

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism simulate --json` prints."""
        return {
            "total_ns": self.solution.total_ns,
            "step_ns": self.step_ns,
            "mean_step_ns": float(np.mean(self.step_ns)),
            "ranks": self.solution.graph.num_ranks,
            "solved_ranks": self.solution.num_cells,
            "critical_path": {by: self.share(by).head(20).to_dicts() for by in ("kind", "name", "rank", "group")},
            "usage": {row["what"]: {"mean_ns": row["mean_ns"], "share": row["share"]} for row in self.usage.to_dicts()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two outcomes, and how many nanoseconds of the critical path each kind of op gained or lost."""

    before: Outcome
    after: Outcome

    @property
    def speedup(self) -> float:
        """How many times shorter the run got."""
        return self.before.solution.total_ns / max(self.after.solution.total_ns, 1)

    def moved(self) -> pl.DataFrame:
        """Nanoseconds on the critical path by op kind: before, after, difference; largest change first."""
        one, two = (o.share("kind").select("kind", "ns") for o in (self.before, self.after))
        both = one.join(two, on="kind", how="full", coalesce=True, suffix="_after").fill_null(0)
        both = both.rename({"ns": "before_ns", "ns_after": "after_ns"})
        change = (pl.col("after_ns") - pl.col("before_ns")).alias("change_ns")
        return both.with_columns(change).sort(pl.col("change_ns").abs(), "kind", descending=[True, False])

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism simulate --what-if --json` prints."""
        return {
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "speedup": self.speedup,
            "critical_path_change": self.moved().to_dicts(),
        }


def solve_plan(plan: Plan, costs: CostModel, *, contention: bool = False) -> Outcome:
    """Solve a plan with every op's time kept, folded unless links are shared."""
    if plan.cluster is not None:
        hosts = int(plan.graph.ranks["host"].max() or 0) + 1  # type: ignore[arg-type]
        costs = ClusterCosts(replace(plan.cluster, num_hosts=max(plan.cluster.num_hosts, hosts)), None)
    if plan.background:
        if not isinstance(costs, ClusterCosts):
            raise BadConfigError("other jobs' traffic needs a described cluster; give --cluster")
        held = costs.cluster.holding(int(plan.graph.ranks["host"].max() or 0) + 1)  # type: ignore[arg-type]
        costs = replace(costs, cluster=add_background(held, plan.background))
    if contention:
        from prism.simulate.solving.contention import solve_shared

        if not isinstance(costs, ClusterCosts):
            raise BadConfigError("sharing links needs a described cluster; give --cluster")
        solution = solve_shared(plan.graph, costs, plan.config)
    else:
        solution = solve(plan.graph, costs, plan.config)
    path = find_critical_path(solution)
    return Outcome(solution=solution, path=path, usage=sum_usage(measure_usage(solution)))


def compare_plans(before: Plan, after: Plan, costs: CostModel, *, contention: bool = False) -> Comparison:
    """Both plans solved with the same costs."""
    one, two = (solve_plan(plan, costs, contention=contention) for plan in (before, after))
    return Comparison(before=one, after=two)
