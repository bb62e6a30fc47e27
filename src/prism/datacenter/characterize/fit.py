"""A joint distribution of type, size, duration and state that agrees with every published marginal.

The figures give durations by type, job counts and GPU time by size, by type and by state, and the summary gives means
and medians; nothing gives them jointly. We use the joint distribution of maximum entropy: as even as these numbers
allow. Each published number is a linear constraint on the probabilities of a grid of cells, with a tolerance for how
exactly it could be read, and the dual problem (one multiplier per constraint) is solved by Newton's method.

The solved cells are shipped as data, so that a seed gives the same trace on every machine; running this module
(`python -m prism.datacenter.characterize.fit`) solves and writes them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from prism.datacenter.characterize.published import find_curve, find_row, find_type_mix, load_published

Array = npt.NDArray[np.float64]

STATES = ("completed", "cancelled", "failed")
# Node counts of 8 GPUs, with sizes inside every interval between the sizes that the figures mark.
SIZES = np.array(
    [1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024],
    dtype=float,
)
_LEAST = 1e-8  # cells less likely than this would not get one job in a hundred million
_EXACT = 1e-3  # relative tolerance of numbers in the summary table
_READ = 1e-2  # of numbers read back from figures (research: about 1 %, up to 3 % between grid lines)


@dataclass(frozen=True, slots=True)
class Cells:
    """A grid of cells, flat: each job falls in one."""

    type: npt.NDArray[np.int64]
    size: Array
    low: Array  # seconds
    high: Array
    state: npt.NDArray[np.int64]
    probability: Array
    types: tuple[str, ...]

    @property
    def mean_s(self) -> Array:
        """Mean length within a cell, where lengths are spread evenly on a log axis."""
        ratio = np.maximum(self.high / self.low, 1 + 1e-12)
        return np.asarray(
            np.where(self.high > self.low, (self.high - self.low) / np.log(ratio), self.low), dtype=np.float64
        )


def load_cells(name: str) -> Cells:
    """The cells that were solved for and shipped: "seren_jobs", "seren_queues", "kalos_jobs" or "kalos_queues"."""
    table = load_published(f"fitted_{name}")
    types = tuple(table["type"].unique(maintain_order=True))
    kind = table["type"].replace_strict({t: i for i, t in enumerate(types)}, return_dtype=pl.Int64)
    state = table["state"].replace_strict({s: i for i, s in enumerate(STATES)}, return_dtype=pl.Int64)
    size, low, high, p = (table[c].cast(pl.Float64).to_numpy() for c in ("gpus", "low_s", "high_s", "probability"))
    return Cells(kind.to_numpy(), size, low, high, state.to_numpy(), p / p.sum(), types)


def cells_to_frame(cells: Cells) -> pl.DataFrame:
    """Cells as the table that is shipped."""
    table = pl.DataFrame(
        {
            "type": np.array(cells.types)[cells.type],
            "gpus": cells.size.astype(int),
            "low_s": cells.low.astype(int),
            "high_s": cells.high.astype(int),
            "state": np.array(STATES)[cells.state],
            "probability": cells.probability,
        }
    )
    return table.filter(pl.col("probability") > _LEAST).with_columns(pl.col("probability").round_sig_figs(5))


def write_fits(folder: Path) -> None:
    """Solve for both clusters and write the tables that `load_cells` reads."""
    for cluster in ("Seren", "Kalos"):
        for name, fit in (("jobs", fit_jobs), ("queues", fit_queues)):
            cells_to_frame(fit(cluster)).write_csv(folder / f"fitted_{cluster.lower()}_{name}.csv")


@dataclass
class Constraints:
    """Rows of "the mean of this feature is that", each scaled so that its target is 1."""

    features: list[npt.NDArray[np.floating[Any]]] = field(default_factory=list)
    tolerances: list[float] = field(default_factory=list)

    def add(self, feature: npt.NDArray[np.floating[Any]], target: float, tolerance: float) -> None:
        """Require mean(feature) = target within a relative tolerance."""
        if target > 0:
            self.features.append(feature / target)
            self.tolerances.append(tolerance)


def fit_jobs(cluster: str) -> Cells:
    """The joint distribution of a cluster's GPU jobs."""
    row, mix = find_row(cluster), find_type_mix(cluster)
    types = tuple(mix["type"])
    edges = _edges(row)
    bins = len(edges) - 1
    shape = np.indices((len(types), len(SIZES), bins, len(STATES))).reshape(4, -1)
    kind, size, part, state = shape[0], np.asarray(SIZES[shape[1]], dtype=np.float64), shape[2], shape[3]
    blank = Cells(kind, size, edges[:-1][part], edges[1:][part], state, np.empty(0), types)
    gpu_time = size * blank.mean_s
    total = sum(_number(row, f"{s}_gpu_time") for s in ("complete", "cancel", "fail")) / _number(row, "gpu_job_num")
    wanted = Constraints()
    base = np.ones(len(kind))
    shares = mix["jobs_pct"].to_numpy() / mix["jobs_pct"].sum()
    time_shares = mix["gpu_time_pct"].to_numpy() / mix["gpu_time_pct"].sum()
    for index, name in enumerate(types):
        here = kind == index
        wanted.add(here * gpu_time, time_shares[index] * total, _READ)
        held = _interpolate(find_curve("duration_cdf", f"{cluster}/{name}").to_numpy(), edges)
        for b in range(bins):
            chosen = here & (part == b)
            base[chosen] *= max(held[b], 1e-9) * shares[index]
            # A bin is known to about a point of the type's jobs, so a small bin is known badly.
            wanted.add(chosen * 1.0, shares[index] * held[b], max(_READ, 0.005 / max(held[b], 1e-9)))
    base *= _constrain_sizes(wanted, cluster, size, gpu_time, total)
    for index, name in enumerate(("complete", "cancel", "fail")):
        base[state == index] *= _number(row, f"{name}_rate_gpu")
        wanted.add((state == index) * 1.0, _number(row, f"{name}_rate_gpu"), _EXACT)
        wanted.add((state == index) * gpu_time, _number(row, f"{name}_rate_gpu_time") * total, _EXACT)
    wanted.add(blank.mean_s, _number(row, "avg_run_time_gpu"), _EXACT)
    wanted.add(size, _number(row, "avg_gpu_num"), _EXACT)
    wanted.add((blank.high <= _number(row, "med_run_time_gpu")) * 1.0, 0.5, _EXACT)
    probability = solve_max_entropy(base, wanted)
    return Cells(kind, size, blank.low, blank.high, state, probability, types)


def fit_queues(cluster: str) -> Cells:
    """Queueing times by type, with the published mean and median."""
    row, mix = find_row(cluster), find_type_mix(cluster)
    types = tuple(mix["type"])
    median = _number(row, "med_que_time_gpu")
    edges = np.unique(np.concatenate([[1.0], 2.0 ** np.arange(18), [median]]))
    edges = np.concatenate([[1.0], edges])  # the first bin is "a second or less"
    bins = len(edges) - 1
    kind, part = np.indices((len(types), bins)).reshape(2, -1)
    cells = Cells(kind, np.ones(len(kind)), edges[:-1][part], edges[1:][part], kind * 0, np.empty(0), types)
    wanted = Constraints()
    base = np.ones(len(kind))
    shares = mix["jobs_pct"].to_numpy() / mix["jobs_pct"].sum()
    for index, name in enumerate(types):
        held = _interpolate(find_curve("queue_cdf", f"{cluster}/{name}").to_numpy(), edges)
        for b in range(bins):
            chosen = (kind == index) & (part == b)
            base[chosen] *= max(held[b], 1e-9) * shares[index]
            wanted.add(chosen * 1.0, shares[index] * held[b], max(_READ, 0.005 / max(held[b], 1e-9)))
    wanted.add(cells.mean_s, _number(row, "avg_que_time_gpu"), _EXACT)
    if median > 1:
        wanted.add((cells.high <= median) * 1.0, 0.5, _EXACT)
    return Cells(kind, cells.size, cells.low, cells.high, cells.state, solve_max_entropy(base, wanted), types)


def solve_max_entropy(base: Array, wanted: Constraints) -> Array:
    """Probabilities closest to `base` (in relative entropy) whose means meet the targets within their tolerances."""
    features = np.array(wanted.features)
    slack = np.square(wanted.tolerances)
    start = np.log(base / base.sum())
    multipliers = np.zeros(len(features))

    def dual(at: Array) -> tuple[float, Array]:
        logits = start + at @ features
        top = logits.max()
        weights = np.exp(logits - top)
        value = top + np.log(weights.sum()) - at.sum() + 0.5 * float(slack @ np.square(at))
        return value, weights / weights.sum()

    value, probability = dual(multipliers)
    damping = 1e-12  # grows where Newton's step overshoots, as far from the solution it does
    for _ in range(300):
        means = features @ probability
        gradient = means - 1 + slack * multipliers
        if float(np.abs(gradient).max()) < 1e-7:
            break
        spread = (features * probability) @ features.T - np.outer(means, means)
        while damping < 1e9:
            step = np.linalg.solve(spread + np.diag(slack + damping), gradient)
            moved, p = dual(multipliers - step)
            if np.isfinite(moved) and moved <= value:
                break
            damping *= 10
        else:
            break
        multipliers, value, probability = multipliers - step, moved, p
        damping = max(damping / 10, 1e-12)
    return probability


def _constrain_sizes(wanted: Constraints, cluster: str, size: Array, gpu_time: Array, total: float) -> Array:
    """Shares of jobs and of GPU time between the sizes that the figures mark; returns the share of jobs per cell."""
    marginal = np.full(len(size), 1e-6)
    for curve, feature, scale in (("gpunum_jobs", np.ones(len(size)), 1.0), ("gpunum_gputime", gpu_time, total)):
        points = find_curve(curve, cluster).to_numpy()
        bounds = np.concatenate([[0.0], points[:, 0], [np.inf]])
        held = np.diff(np.concatenate([[0.0], points[:, 1] / 100, [1.0]]))
        for low, high, share in zip(bounds[:-1], bounds[1:], held, strict=True):
            inside = (size > low) & (size <= high)
            if inside.any():
                wanted.add(inside * feature, share * scale, max(_READ, 2e-4 / max(share, 1e-9)))
                if curve == "gpunum_jobs":
                    marginal[inside] = max(share, 1e-6) / len(np.unique(size[inside]))
    return marginal


def _edges(row: dict[str, float | None]) -> Array:
    """Bin edges of durations: the figures' grid of powers of two, the median, and the longest job."""
    longest = _number(row, "max_run_time_gpu")
    powers = 2.0 ** np.arange(21)
    inner = np.unique(np.append(powers[powers < longest], _number(row, "med_run_time_gpu")))
    return np.concatenate([[1.0], inner, [longest]])


def _interpolate(points: Array, edges: Array) -> Array:
    """Share of jobs in every bin of a cumulative curve given at some points, straight on a log axis."""
    at = np.interp(np.log(edges[1:]), np.log(points[:, 0]), points[:, 1] / 100)
    at[-1] = 1.0
    return np.maximum(np.diff(np.concatenate([[0.0], np.maximum.accumulate(at)])), 0.0)


def _number(row: dict[str, float | None], name: str) -> float:
    value = row[name]
    assert value is not None, f"the summary gives no {name}"
    return float(value)


if __name__ == "__main__":
    write_fits(Path(__file__).parent / "data")
