"""Solve the stitched graph: iteration time with its band, where the time goes, memory, and whether it fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from prism.emulate.capture import Capture
from prism.emulate.replaying import Replayed
from prism.emulate.stitch import Stitched
from prism.emulate.survey import EAGER_BYTES
from prism.emulate.units import StepSummary, summarize
from prism.errors import BadConfigError
from prism.records.ops import COLLECTIVES, POINT_TO_POINT
from prism.simulate.calibration import Calibration, read_calibration
from prism.simulate.cluster import Cluster
from prism.simulate.cluster_file import load_cluster, preset_names
from prism.simulate.costs import PROVENANCES, ClusterCosts, estimate_ops
from prism.simulate.graph import Graph
from prism.simulate.solving.overlap import SLOWER, solve_contended
from prism.simulate.solving.solver import Solution, SolveConfig
from prism.simulate.solving.usage import measure_usage

# Without a calibration gloo's model does not know this host: one that was not used to tune it was predicted 19 % short.
_UNCALIBRATED_BAND_PCT = 25.0
# With one, 12 layouts of 2 to 8 ranks on 16 shared cores were 5 % off on average and 13 % at most: gloo's threads, the
# kernel's scheduling and other tenants of a CPU are in no model.
_CPU_BAND_PCT = 13.0
# With less than two cores a rank, threads of gloo and autograd take turns with the program: of 28 programs of 2 ranks
# on 2 cores of a busy host 27 took at most 2.26 times as long as predicted.
_CROWDED_BAND_PCT = 130.0
_REPLAY_BAND_PCT = 8.0  # two real runs of one program differ by so much
# By the words of the device's name: a GB200 is no B200.
_PRESET_OF_GPU = {
    "H200": "dgx-h200",
    "H100": "dgx-h100",
    "A100": "dgx-a100",
    "B200": "dgx-b200",
    "GB200": "gb200-nvl72",
    "V100": "dgx-v100",
    "MI250X": "mi250x",
    "MI300X": "mi300x",
}

# Buffers of one NCCL communicator: channels x receiving connections (ring and tree) x (4 MiB Simple + 4.7 MiB LL128
# + 0.25 MiB LL), NCCL's default sizes; up to 24 channels on Hopper. An assumption, not a measurement.
_CHANNELS, _CONNECTIONS, _BUFFER_BYTES = 24, 2, round(8.95 * 2**20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Where an iteration goes, as mean shares over all ranks; they add up to one with overlap counted as compute."""

    compute: float
    exposed_communication: float
    bubble: float
    overlapped_communication: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMemory:
    """Peak memory of one rank class and whether its GPU holds it."""

    ranks: tuple[int, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    communicator_bytes: int
    how: str
    fits: bool | None  # None where the size of the GPU is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the job would do on the cluster."""

    step_ns: tuple[int, ...]
    steps: StepSummary
    split: Split
    memory: tuple[ClassMemory, ...]
    communication: str  # calibrated or modelled
    error_band_pct: float
    solution: Solution
    costs: ClusterCosts
    eager_bytes: int
    work_ms: tuple[float, ...] = ()  # processor time of an iteration, by class
    not_predicted: str = ""  # why no step time can be stood by

    @property
    def cluster(self) -> Cluster:
        """Where the job was predicted to run."""
        return self.costs.cluster

    @property
    def headline_ms(self) -> float:
        """What an iteration takes: the median where all are alike, else the mean over the repeating unit."""
        return float(np.median(self.step_ns)) / 1e6 if self.steps.unit == 1 else self.steps.mean_ms


def choose_costs(
    device: str, world_size: int, gpus_per_node: int, cluster: str | None, calibration: Path | None
) -> ClusterCosts:
    """The cluster asked for, or the one that this device suggests, with its calibration checked to belong to it."""
    chosen = load_cluster(cluster or _preset_of(device))
    hosts = -(-world_size // gpus_per_node)
    chosen = replace(chosen, gpus_per_host=gpus_per_node, num_hosts=max(hosts, chosen.num_hosts))
    measured = _keep_what_fits(read_calibration(calibration), gpus_per_node, calibration) if calibration else None
    if measured is not None:
        chosen = replace(chosen, num_hosts=max(chosen.num_hosts, int(measured.points["num_hosts"].max())))  # type: ignore[arg-type]
    if measured is not None and measured.backend != chosen.backend:
        raise BadConfigError(
            f"{calibration}: measured on {measured.backend}, but cluster '{chosen.name}' runs {chosen.backend}; "
            "calibrate with that backend or name another cluster"
        )
    return ClusterCosts(chosen, measured)


def _preset_of(device: str) -> str:
    """The cluster that a device suggests; one that suggests none has to be named."""
    if device == "cpu":
        return "ethernet-host"
    found = [_PRESET_OF_GPU[word] for word in re.split(r"[^A-Za-z0-9]+", device) if word in _PRESET_OF_GPU]
    if not found:
        raise BadConfigError(
            f"no cluster is known for the GPU '{device}'; name one with --cluster: a file, or one of "
            f"{', '.join(preset_names())}"
        )
    return found[0]


def _keep_what_fits(measured: Calibration, gpus_per_node: int, path: Path) -> Calibration:
    """Leave out groups with more ranks on a host than the job has: they say nothing about its hosts."""
    fits = pl.col("num_ranks") <= pl.col("num_hosts") * gpus_per_node
    kept = measured.points.filter(fits)
    if kept.is_empty():
        fewest = measured.points.select((pl.col("num_ranks") / pl.col("num_hosts")).ceil().min()).item()
        raise BadConfigError(
            f"{path}: measured with {fewest:g} or more ranks on a host, but the job has {gpus_per_node}; raise "
            "--gpus-per-node or calibrate with a smaller --world-size"
        )
    return Calibration(measured.backend, kept)


def predict(
    stitched: Stitched,
    captures: Mapping[int, Capture],
    costs: ClusterCosts,
    *,
    gpu_memory_bytes: int | None = None,
    crowded: bool = False,
    not_predicted: str = "",
    replay: Callable[[float], Replayed | None] = lambda expected_ns: None,
) -> Prediction:
    """Solve all measured iterations in a row and read the figures off; ranks with few cores are `crowded`.

    `replay` runs them on this host where it can, and its steps then take the place of the solved ones.
    """
    gloo = costs.cluster.backend == "gloo"
    config = SolveConfig(note_ops=True, eager_bytes=EAGER_BYTES if gloo else -1)
    # Kernels of NCCL take multiprocessors from those that compute; CPU ranks were measured side by side.
    solution = solve_contended(stitched.graph, costs, config, slower=1.0 if gloo else SLOWER)
    split = _split(solution)
    communication, band = assess_costs(stitched.graph, costs)
    exposed = split.exposed_communication + split.bubble
    total = stitched.compute_spread_pct * (1 - exposed) + band * split.exposed_communication
    if gloo and split.exposed_communication > 0:
        total = max(total, _UNCALIBRATED_BAND_PCT if communication == "modelled" else _CPU_BAND_PCT)
        total = max(total, _CROWDED_BAND_PCT if crowded else 0.0)
    step_ns = tuple(int(x) for x in solution.step_ns)
    replayed = replay(float(np.mean(step_ns)))
    if replayed is not None:
        step_ns, communication = replayed.step_ns, "calibrated"
        total = max(_REPLAY_BAND_PCT, replayed.spread_pct)
    device = next(iter(captures.values()))
    limit = gpu_memory_bytes or device.device_bytes or None
    return Prediction(
        step_ns=step_ns,
        steps=summarize(stitched.iteration_signs, [x / 1e6 for x in step_ns], stitched.iteration_sources),
        split=split,
        memory=_memory(stitched, captures, limit, nccl=not gloo),
        communication=communication,
        error_band_pct=round(float(total), 2),
        solution=solution,
        costs=costs,
        eager_bytes=config.eager_bytes,
        work_ms=_measure_work(stitched),
        not_predicted=not_predicted,
    )


def _measure_work(stitched: Stitched) -> tuple[float, ...]:
    """Processor time of a class's first captured rank in an iteration, the mean of those measured."""
    firsts = (stitched.measured[captured[0]] for captured in stitched.classes.captured)
    return tuple(sum(e.gap_ns for part in parts for e in part) / len(parts) / 1e6 for parts in firsts)


def _split(solution: Solution) -> Split:
    usage = measure_usage(solution)
    weight = usage["weight"].to_numpy()
    mean = {
        name: float(np.average(usage[f"{name}_ns"].to_numpy() / max(solution.total_ns, 1), weights=weight))
        for name in ("compute", "host", "exposed", "bubble", "overlapped")
    }
    return Split(
        compute=mean["compute"] + mean["host"],
        exposed_communication=mean["exposed"],
        bubble=mean["bubble"],
        overlapped_communication=mean["overlapped"],
    )


def assess_costs(graph: Graph, costs: ClusterCosts) -> tuple[str, float]:
    """Whether communication times come from measurements, and their error band weighted by time."""
    communication = graph.ops.filter(pl.col("kind").is_in([*COLLECTIVES, *POINT_TO_POINT]))
    first = graph.ranks.group_by("class").agg(pl.col("rank").min())
    asked = communication.select("class", "slot", "kind", "bytes").unique().join(first, on="class")
    seats = graph.groups.join(graph.ranks, on="rank")
    mine = asked.join(graph.groups.select("slot", "rank", "group"), on=["slot", "rank"])
    members = seats.group_by("group").agg("host", "local")
    mine = mine.join(members, on="group").filter(pl.col("host").list.len() > 1)
    if mine.is_empty():
        return "modelled", 0.0
    placements = [costs.place(h, loc) for h, loc in zip(mine["host"].to_list(), mine["local"].to_list(), strict=True)]
    index = np.arange(len(placements))
    sizes = mine["bytes"].fill_null(0).to_numpy()
    found = estimate_ops(
        mine["kind"].cast(pl.String).to_list(), sizes, index, placements, costs.cluster, costs.calibration
    )
    weight = found.duration_ns + 1
    measured = np.average(found.provenance > PROVENANCES.index("modelled"), weights=weight)
    return ("calibrated" if measured > 0.5 else "modelled"), float(np.average(found.error_band_pct, weights=weight))


def _memory(
    stitched: Stitched, captures: Mapping[int, Capture], limit: int | None, *, nccl: bool
) -> tuple[ClassMemory, ...]:
    out = []
    for class_id, captured in enumerate(stitched.classes.captured):
        ranks = tuple(stitched.classes.members(class_id))
        peaks = [captures[r].memory for r in captured]
        worst = max(peaks, key=lambda p: p.allocated)
        reserved = max(p.reserved for p in peaks)
        groups = sum(1 for f in stitched.families.families if ranks[0] in f.seat and f.size > 1)
        extra = groups * _CHANNELS * _CONNECTIONS * _BUFFER_BYTES if nccl else 0
        fits = None if limit is None else reserved + extra <= limit
        out.append(
            ClassMemory(
                ranks=ranks,
                peak_allocated_bytes=worst.allocated,
                peak_reserved_bytes=reserved,
                communicator_bytes=extra,
                how=worst.how,
                fits=fits,
            )
        )
    return tuple(out)
