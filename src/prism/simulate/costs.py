"""What a transfer takes on a cluster: measured where a calibration covers it, fitted near that, modelled elsewhere."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.errors import BadConfigError
from prism.simulate.bands import CALIBRATE_ABOVE_PCT, MEASURED_NETWORK, band_pct, by_size
from prism.simulate.calibration import Calibration
from prism.simulate.cluster import Cluster, IntArray
from prism.simulate.correction import fit_calibration
from prism.simulate.nccl.choice import Costs, FloatArray
from prism.simulate.placement import GroupPlacement, placement_of
from prism.simulate.transfer_model import evaluate_transfer

PROVENANCES = ("modelled", "fitted", "measured")
_MODELLED, _FITTED, _MEASURED = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long one transfer takes, and how that is known."""

    duration_ns: int
    algorithm: str
    protocol: str
    channels: int
    provenance: str  # measured, fitted or modelled
    error_band_pct: float  # 95 of 100 measured times lie within a factor of 1 + this / 100

    @property
    def needs_calibration(self) -> bool:
        """Whether too little is known about this network to rely on the time."""
        return self.error_band_pct > CALIBRATE_ABOVE_PCT


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Many estimates as arrays; `provenance` indexes PROVENANCES."""

    duration_ns: IntArray
    provenance: NDArray[np.int8]
    error_band_pct: FloatArray


@dataclass(frozen=True, slots=True)
class ClusterCosts:
    """A cluster, and its calibration where there is one, as the solver's cost model."""

    cluster: Cluster
    calibration: Calibration | None = None

    def place(self, hosts: Sequence[int], locals_: Sequence[int]) -> GroupPlacement:
        """The placement of a group, without what has no effect on the cost, so that symmetric groups are equal."""
        placement = placement_of(hosts, locals_, self.cluster)
        if self.cluster.fabric.oversubscription == 1:
            placement = replace(placement, num_leaves=1)
        return placement

    def price(
        self, kinds: Sequence[str], sizes: IntArray, placement_index: IntArray, placements: Sequence[Hashable]
    ) -> IntArray:
        """Nanoseconds of each transfer."""
        return estimate_many(kinds, sizes, placement_index, placements, self.cluster, self.calibration)  # type: ignore[arg-type]


def estimate(
    kind: str, num_bytes: int, placement: GroupPlacement, cluster: Cluster, calibration: Calibration | None = None
) -> Estimate:
    """One transfer; bytes as OPS counts them."""
    if num_bytes < 0:
        raise BadConfigError(f"a {kind} of {num_bytes} bytes cannot be")
    sizes = np.array([num_bytes], float)
    costs, found = _estimate(kind, sizes, placement, cluster, calibration)
    chosen = costs.candidates[costs.choice[0]]
    algorithm, _, protocol = chosen.name.partition("/")
    return Estimate(
        duration_ns=int(found.duration_ns[0]),
        algorithm=algorithm,
        protocol=protocol,
        channels=chosen.channels,
        provenance=PROVENANCES[found.provenance[0]],
        error_band_pct=float(found.error_band_pct[0]),
    )


def estimate_many(
    kinds: Sequence[str] | NDArray[np.str_],
    sizes: IntArray,
    placement_index: IntArray,
    placements: Sequence[GroupPlacement],
    cluster: Cluster,
    calibration: Calibration | None = None,
) -> IntArray:
    """Nanoseconds of each transfer; every distinct (kind, bytes, placement) is computed once."""
    return estimate_ops(kinds, sizes, placement_index, placements, cluster, calibration).duration_ns


def estimate_ops(
    kinds: Sequence[str] | NDArray[np.str_],
    sizes: IntArray,
    placement_index: IntArray,
    placements: Sequence[GroupPlacement],
    cluster: Cluster,
    calibration: Calibration | None = None,
) -> Estimates:
    """Like `estimate_many`, with provenance and error band of each transfer."""
    asked = pl.DataFrame({"kind": pl.Series(kinds, dtype=pl.String), "bytes": sizes, "placement": placement_index})
    priced = []
    for (kind, index), group in asked.unique().group_by("kind", "placement"):
        wanted = group["bytes"].to_numpy().astype(float)
        if wanted.min() < 0:
            raise BadConfigError(f"a {kind} of {int(wanted.min())} bytes cannot be")
        found = _estimate(str(kind), wanted, placements[int(str(index))], cluster, calibration)[1]
        priced.append(
            group.with_columns(
                duration=pl.Series(found.duration_ns),
                provenance=pl.Series(found.provenance),
                band=pl.Series(found.error_band_pct),
            )
        )
    if not priced:
        return Estimates(duration_ns=np.empty(0, np.int64), provenance=np.empty(0, np.int8), error_band_pct=np.empty(0))
    out = asked.join(pl.concat(priced), on=["kind", "bytes", "placement"], how="left", maintain_order="left")
    return Estimates(
        duration_ns=out["duration"].to_numpy(),
        provenance=out["provenance"].to_numpy(),
        error_band_pct=out["band"].to_numpy(),
    )


def _estimate(
    kind: str, sizes: FloatArray, placement: GroupPlacement, cluster: Cluster, calibration: Calibration | None
) -> tuple[Costs, Estimates]:
    """Model every size, then let measured points bend what they cover."""
    kind = "send" if kind == "recv" else kind
    costs = evaluate_transfer(kind, sizes, placement, cluster)
    duration = costs.duration_us
    modelled = band = band_pct(kind, sizes, placement, cluster)
    provenance = np.zeros(len(sizes), np.int8)
    if calibration is not None and placement.num_ranks > 1:
        fit = fit_calibration(calibration, cluster)
        correction = fit.corrections.get((kind, placement.num_ranks, placement.num_hosts))
        factors = fit.factors.get(kind)
        if correction is not None:
            covered = correction.covers(sizes)
            duration = correction.apply(sizes, costs)
            provenance = np.where(covered, _MEASURED, _FITTED).astype(np.int8)
            band = correction.band(sizes, modelled)
        elif factors is not None:
            moved = costs.duration_us - costs.latency_us
            duration = factors.latency * costs.latency_us + factors.transfer * moved
            provenance = np.full(len(sizes), _FITTED, np.int8)
            band = factors.band_pct + _left_unknown(modelled, sizes, placement, is_known=kind in fit.crossing)
    found = Estimates(duration_ns=np.rint(duration * 1000).astype(np.int64), provenance=provenance, error_band_pct=band)
    return costs, found


def _left_unknown(modelled: FloatArray, sizes: FloatArray, placement: GroupPlacement, *, is_known: bool) -> FloatArray:
    """The part of the model's band that remains where another placement was measured."""
    if placement.same_host:
        return modelled / 2
    # Points measured within one host give no information about the network between hosts.
    return np.minimum(modelled, by_size(MEASURED_NETWORK, sizes)) / 2 if is_known else modelled
