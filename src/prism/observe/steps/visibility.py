"""What the records of a job can show; what they cannot show is reported, and no finding is based on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.steps.gradient_overlap import size_up
from prism.observe.traffic.table import Traffic

_LIKE_TIMEOUT = levels.SHARE_SMALL  # relative difference
_COARSE_NS = levels.MILLISECOND_NS  # times in milliseconds are common
_SECOND_NS = 1_000_000_000
_SOME = levels.SHARE_MINOR  # of the bytes of a pair
_QUICK = levels.SHARE_MINOR  # of a record that lasts long


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityConfig:
    """When records are too coarse to time single transfers."""

    cut: float = levels.SHARE_NEGLIGIBLE  # share of the bytes in records that an active timeout cut
    coarse: float = levels.SHARE_NEGLIGIBLE  # of a step: times that are rounded to more do not show who is late
    packets: float = levels.RATIO_FAR  # of a message that are seen where packets are sampled
    long: float = levels.SHARE_MINOR  # of a step: records that mostly last longer hold several messages
    merged: float = levels.SHARE_MINOR  # share of the pairs that send such records
    # Of a step by which a half of them differ: cut records do not show such steps.
    scattered: float = levels.SHARE_MINOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """Whether steps, and what happens inside a step, show in a job's records; `notes` say what does not and why."""

    steps: bool = True
    inside: bool = True
    layout: bool = True  # whether single messages are visible, which show what a pair carries
    comparable: bool = True  # whether steps all send the same, so that longer ones and late ranks can be told
    notes: tuple[str, ...] = ()


def judge_visibility(
    traffic: Traffic, streams: pl.DataFrame, steps: pl.DataFrame, config: VisibilityConfig | None = None, *,
    bursts: bool = False,
) -> Visibility:  # fmt: skip
    """What can be read from the records of one job, given its streams and the steps that were found.

    `bursts` last as long as what a connection sends in a step, by which they are compared.
    """
    config = config or VisibilityConfig()
    load = (streams["bytes"] * streams["num"]).to_numpy()
    cut = float(load[streams["cut"].to_numpy()].sum() / max(load.sum(), 1.0))
    steps = drop_timeouts(traffic, steps, cut >= config.cut, config)
    reasons = []
    if 0 < steps.height < levels.MIN_SAMPLES:
        reasons.append("what may be a step comes fewer than three times")
        steps = steps.clear()
    usual = float((steps["end_ns"] - steps["start_ns"]).median()) if steps.height else 0.0  # type: ignore[arg-type]
    if traffic.resolution_ns >= max(_SECOND_NS, levels.ONE_PERCENT * usual):
        # Several steps that last for nearly a whole number of seconds repeat better than each of them.
        steps, usual = steps.clear(), 0.0
    if cut >= config.cut:
        reasons.append(f"records are cut after {traffic.active_ns / 1e9:.3g} s of traffic (active timeout)")
    if traffic.resolution_ns > max(config.coarse * usual, _COARSE_NS):
        reasons.append(f"times are rounded to {traffic.resolution_ns / 1e6:,.0f} ms")
    large = streams.filter(pl.col("role") != "rare")
    if usual and not bursts and _hold_several(large, config.long * usual) > config.merged:
        reasons.append("records last for a good part of a step (idle timeout)")
    if traffic.sample_bytes and large.height and _lower_size(large) < config.packets * traffic.sample_bytes:
        reasons.append(f"fewer than {config.packets:.0f} packets of a message are seen (sampling)")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    if not steps.height:
        unclear = why or " (its traffic repeats at no regular moment)"
        needed = "; to see them, the active timeout must be shorter than a step" if cut >= config.cut else ""
        return Visibility(
            steps=False,
            inside=False,
            layout=not reasons,  # Records of single messages show their purpose, however different the steps.
            notes=(f"steps cannot be seen{unclear}: whether it is slow is not known{needed}",),
        )
    if reasons:
        note = f"single transfers cannot be timed{why}: slow ranks and links cannot be found; slow steps and stops can"
        return Visibility(inside=False, layout="timeout)" not in why, notes=(note,))
    return Visibility()


def _lower_size(streams: pl.DataFrame) -> float:
    """Bytes of a message of the smaller streams: those of a pipeline may be far smaller than sums of gradients."""
    return float(streams["bytes"].quantile(_SOME) or 0.0)


def _hold_several(streams: pl.DataFrame, long_ns: float) -> float:
    """The share of pairs with many of their bytes in long records.

    Not those of a size that others send quickly: these are hops that wait for a late rank.
    """
    load = pl.col("bytes") * pl.col("num")
    size = pl.Series("size", size_up(streams["bytes"].to_numpy()))
    quick = size.filter(streams["duration_ns"] < _QUICK * long_ns).unique()
    waits = size.is_in(quick.implode()).alias("waits")
    several = (pl.col("duration_ns") > long_ns) & ~pl.col("waits")
    pairs = streams.with_columns(waits).group_by("pair").agg((load * several).sum() > _SOME * load.sum())
    return float(pairs.to_series(1).mean() or 0.0)  # type: ignore[arg-type]


def drop_timeouts(
    traffic: Traffic, steps: pl.DataFrame, mostly_cut: bool, config: VisibilityConfig | None = None
) -> pl.DataFrame:
    """The steps; none if they are an artefact of an active timeout on steady traffic, or differ by chance.

    Where times are rounded to seconds, a few cut records repeat after several timeouts too.
    """
    config = config or VisibilityConfig()
    if not steps.height or not traffic.active_ns:
        return steps
    lengths = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    low, usual, high = np.quantile(lengths, [0.25, 0.5, 0.75])
    times = usual / traffic.active_ns
    whole = max(1, round(times)) if traffic.resolution_ns >= _SECOND_NS else 1
    like = abs(times / whole - 1) < _LIKE_TIMEOUT and (mostly_cut or traffic.resolution_ns >= _SECOND_NS)
    scattered = mostly_cut and high - low > config.scattered * usual
    return steps.clear() if like or scattered else steps
