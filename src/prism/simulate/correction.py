"""Bend a modelled curve to measured points, and say how well the bent curve holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.errors import BadConfigError
from prism.simulate.calibration import Calibration
from prism.simulate.cluster import Cluster
from prism.simulate.nccl.choice import Costs, FloatArray
from prism.simulate.placement import spread_evenly
from prism.simulate.transfer_model import evaluate_transfer

_TRUST_IN_MODEL = 0.1  # weight of "both factors are 1" against one measured point
# A neighbour that ran another algorithm has half the weight in the error of this one. Of 1, 2, 3 and 5 the one
# that did best on the ten published H200 points; on the other published tables they are alike.
_SAME_ALGORITHM = 2.0
_BAND_QUANTILE = 0.9
_SMALLEST_BAND_PCT = 1.0
_LEAST_REPEATS = 3
# Quantile 0.975 of Student's t with 1 to 15 degrees of freedom; more repeats are taken as 16, which is cautious.
_STUDENT_975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, eq=False)
class Correction:
    """Measured over modelled, along sizes of one kind on one number of ranks and hosts."""

    log_bytes: FloatArray
    log_ratio: FloatArray
    algorithms: NDArray[np.str_]  # what the model chose at each point
    inside_band_pct: float | None = None  # error at left-out points between others; none to tell from two points
    outside_band_pct: float | None = None  # error at the ends, left out; none to tell from one point
    repeated_band_pct: FloatArray | None = None  # of each point by its own repeats; nan where there are too few

    def apply(self, sizes: FloatArray, costs: Costs) -> FloatArray:
        """The modelled shape bent so that it meets the points; beyond them the last ratio holds."""
        bent: FloatArray = costs.shape_us * np.exp(self.interpolate(_log(sizes), costs.algorithms))
        return bent

    def interpolate(self, logs: FloatArray, algorithms: NDArray[np.str_]) -> FloatArray:
        """The log ratio between the two nearest points, the one with the same algorithm counting more."""
        if len(self.log_bytes) == 1:
            return np.full(len(logs), self.log_ratio[0])
        right = np.clip(np.searchsorted(self.log_bytes, logs), 1, len(self.log_bytes) - 1)
        left = right - 1
        share = np.clip((logs - self.log_bytes[left]) / (self.log_bytes[right] - self.log_bytes[left]), 0, 1)
        near = (1 - share) * np.where(self.algorithms[left] == algorithms, _SAME_ALGORITHM, 1.0)
        far = share * np.where(self.algorithms[right] == algorithms, _SAME_ALGORITHM, 1.0)
        ratio: FloatArray = (near * self.log_ratio[left] + far * self.log_ratio[right]) / (near + far)
        return ratio

    def band(self, sizes: FloatArray, modelled: FloatArray) -> FloatArray:
        """Per cent: of a size that was measured several times by its repeats, else by the error of left-out points."""
        inside, outside = self.inside_band_pct, self.outside_band_pct
        own = np.where(
            self.covers(sizes), modelled if inside is None else inside, modelled if outside is None else outside
        )
        if self.repeated_band_pct is None:
            return own
        at = np.clip(np.searchsorted(self.log_bytes, _log(sizes) - 1e-12), 0, len(self.log_bytes) - 1)
        repeated = np.where(np.abs(self.log_bytes[at] - _log(sizes)) < 1e-9, self.repeated_band_pct[at], np.nan)
        band: FloatArray = np.where(np.isnan(repeated), own, repeated)
        return band

    def covers(self, sizes: FloatArray) -> NDArray[np.bool_]:
        """Which sizes lie between the smallest and the largest measured one."""
        logs = _log(sizes)
        covered: NDArray[np.bool_] = (logs >= self.log_bytes[0] - 1e-12) & (logs <= self.log_bytes[-1] + 1e-12)
        return covered


@dataclass(frozen=True, slots=True)
class Factors:
    """How much slower than modelled a kind starts and moves bytes; carries over to other placements."""

    latency: float
    transfer: float
    band_pct: float


@dataclass(frozen=True, eq=False)
class Fit:
    """Everything that a calibration says about one cluster."""

    corrections: dict[tuple[str, int, int], Correction]  # kind, ranks, hosts
    factors: dict[str, Factors]
    crossing: frozenset[str]  # kinds that were measured between hosts


@lru_cache(maxsize=64)
def fit_calibration(calibration: Calibration, cluster: Cluster) -> Fit:
    """Fit corrections and factors; refuses points of another backend."""
    if calibration.backend != cluster.backend:
        raise BadConfigError(
            f"the calibration was measured on {calibration.backend}, but {cluster.name} runs {cluster.backend}; "
            f"measure with `prism calibrate --backend {cluster.backend}`"
        )
    points = calibration.points.with_columns(pl.col("kind").cast(pl.String).replace("recv", "send"))
    logs = pl.col("duration_ns").log()
    median = points.group_by("kind", "num_ranks", "num_hosts", "bytes").agg(
        pl.col("duration_ns").median(), pl.len().alias("repeats"), logs.std().fill_null(0.0).alias("spread")
    )
    corrections: dict[tuple[str, int, int], Correction] = {}
    parts: dict[str, list[FloatArray]] = {}
    key = ["kind", "num_ranks", "num_hosts"]
    for group in median.filter(pl.col("num_ranks") > 1).sort(*key, "bytes").partition_by(key):
        kind, ranks, hosts = group.select(key).row(0)
        sizes, measured = group["bytes"].to_numpy().astype(float), group["duration_ns"].to_numpy() / 1000
        cluster = cluster.holding(hosts)
        if ranks > cluster.num_gpus or hosts > cluster.num_hosts or ranks > hosts * cluster.gpus_per_host:
            raise BadConfigError(
                f"the calibration has {ranks} ranks on {hosts} hosts, which {cluster.name} cannot hold"
            )
        costs = evaluate_transfer(kind, sizes, spread_evenly(ranks, hosts, cluster), cluster)
        repeated = _repeated_band(group["repeats"].to_numpy(), group["spread"].to_numpy())
        corrections[kind, ranks, hosts] = replace(_correct(sizes, measured, costs), repeated_band_pct=repeated)
        rows = np.stack([costs.latency_us, costs.duration_us - costs.latency_us, measured])
        parts.setdefault(kind, []).append(rows)
    factors = {kind: _fit_factors(np.concatenate(rows, axis=1)) for kind, rows in parts.items()}
    crossing = frozenset(kind for kind, _, hosts in corrections if hosts > 1)
    return Fit(corrections, factors, crossing)


def _log(sizes: FloatArray) -> FloatArray:
    logs: FloatArray = np.log(np.maximum(sizes, 1.0))
    return logs


def _correct(sizes: FloatArray, measured: FloatArray, costs: Costs) -> Correction:
    bent = Correction(_log(sizes), np.log(measured / costs.shape_us), costs.algorithms)
    missed = np.array([_leave_out(bent, i) for i in range(len(sizes))])
    inside = max(_quantile(missed[1:-1]), _SMALLEST_BAND_PCT) if len(sizes) > 2 else None
    outside = max(float(missed[0]), float(missed[-1]), _SMALLEST_BAND_PCT) if len(sizes) > 1 else None
    return replace(bent, inside_band_pct=inside, outside_band_pct=outside)


def _repeated_band(repeats: NDArray[np.uint32], spread: FloatArray) -> FloatArray:
    """Where the next measurement lies 95 times in 100, from several of the same: Student's prediction interval."""
    factor = np.array([_STUDENT_975[min(int(n), len(_STUDENT_975) + 1) - 2] if n > 1 else np.nan for n in repeats])
    # The time is their median, whose variance is up to pi / 2 that of a mean.
    wide = np.expm1(factor * spread * np.sqrt(1.0 + np.pi / 2.0 / np.maximum(repeats, 1))) * 100
    return np.where(repeats >= _LEAST_REPEATS, np.maximum(wide, _SMALLEST_BAND_PCT), np.nan)


def _leave_out(bent: Correction, index: int) -> float:
    """By how many per cent a fit to the other points misses this one."""
    if len(bent.log_bytes) == 1:
        return 0.0
    keep, one = np.arange(len(bent.log_bytes)) != index, slice(index, index + 1)
    others = Correction(bent.log_bytes[keep], bent.log_ratio[keep], bent.algorithms[keep])
    guess = others.interpolate(bent.log_bytes[one], bent.algorithms[one])
    return float(np.abs(np.expm1(guess - bent.log_ratio[one]))[0] * 100)


def _fit_factors(rows: FloatArray) -> Factors:
    """Least squares of relative error, drawn towards the model where there are few points."""
    latency, transfer, measured = rows
    design = np.stack([latency / measured, transfer / measured], axis=1)
    gram = design.T @ design + _TRUST_IN_MODEL * np.eye(2)
    solution = np.linalg.solve(gram, design.sum(axis=0) + _TRUST_IN_MODEL)
    solution = np.clip(solution, 0.05, 20.0)
    missed = np.abs(design @ solution - 1) * 100
    return Factors(float(solution[0]), float(solution[1]), _quantile(missed))


def _quantile(values: FloatArray) -> float:
    return float(np.quantile(values, _BAND_QUANTILE))
