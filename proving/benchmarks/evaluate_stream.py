"""A week of new checkpoints on a few nodes, simulated: time to score and GPU-hours, one dataset or more kept ready.

    python proving/benchmarks/evaluate_stream.py [--days 7] [--nodes 1] [--gap-min 60] [--draws 1]

Checkpoints of one 7B model come at random (exponential gaps) and are scored on the 63 datasets of `evaluate.py` as
they come. Nothing is recorded before the first one. Answers get longer and shorter as the model trains, so that a
dataset's run time differs from checkpoint to checkpoint (log-normal, 15 %), and nodes differ (5 %). Both planners see
the same checkpoints, run times and nodes. Either a worker keeps one dataset ready, or several, over checkpoints too.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import numpy as np

from evaluate import CPUS, GPUS, LINK, MODEL, SPREADS, draw_setting
from evaluate_cluster import Links, simulate_evaluation
from machine import describe_machine
from prism.evaluate.schedule import events
from prism.evaluate.schedule.priors import Prior, Priors
from prism.evaluate.schedule.scheduler import Scheduler, SchedulerConfig
from prism.evaluate.schedule.trials import Checkpoint, Node, Worker

PLANNERS = {
    "one": SchedulerConfig(storage_bytes_per_s=LINK, kept_datasets=1),
    "several": SchedulerConfig(storage_bytes_per_s=LINK),
}


@dataclasses.dataclass(frozen=True)
class Stream:
    """When checkpoints come, and how long everything takes."""

    arrivals: dict[str, float]
    truth: dict[tuple[str, str], Prior]
    paces: dict[str, float]
    seed: int


def draw_stream(seed: int, options: argparse.Namespace) -> Stream:
    """Checkpoints at random, each with run times of its own."""
    rng = np.random.default_rng(seed + 5000)
    setting = draw_setting(seed, SPREADS["middle"])
    arrivals, at_s = {}, 0.0
    while (at_s := at_s + rng.exponential(60.0 * options.gap_min)) < options.days * 86_400:
        arrivals[f"c{len(arrivals):04}"] = at_s
    truth = {}
    for name in arrivals:
        for (_, dataset), prior in setting.truth.items():
            factor = float(rng.lognormal(0.0, 0.15))
            truth[name, dataset] = dataclasses.replace(prior, infer_s=prior.infer_s * factor)
    paces = {f"n{n:02}": float(rng.lognormal(0.0, 0.05)) for n in range(options.nodes)}
    return Stream(arrivals, truth, paces, seed)


def run_stream(stream: Stream, config: SchedulerConfig, nodes: int) -> tuple[np.ndarray, float]:
    """Seconds from arrival to the last score of every checkpoint, and the GPU-hours of all."""
    datasets = draw_setting(stream.seed, SPREADS["middle"]).datasets
    checkpoints = {name: dataclasses.replace(MODEL, name=name) for name in stream.arrivals}
    run = simulate_evaluation(
        Scheduler([], datasets, Priors(), config),
        checkpoints=list(checkpoints.values()),
        truth=stream.truth,
        nodes=[Node(id=f"n{n:02}", cpus=CPUS) for n in range(nodes)],
        workers=[Worker(id=f"n{n:02}g{g}", node=f"n{n:02}", gpus=(g,)) for n in range(nodes) for g in range(GPUS)],
        links=Links(node=LINK),
        interruptions=[_added(checkpoints[name], at_s) for name, at_s in stream.arrivals.items()],
        paces=stream.paces,
    )
    waits = np.array([run.scored_s[name] - at_s for name, at_s in stream.arrivals.items()])
    return waits, run.busy_gpu_s / 3600


def _added(checkpoint: Checkpoint, at_s: float) -> events.Event:
    return events.CheckpointAdded(now_s=at_s, checkpoint=checkpoint)


def main() -> None:
    """Print both planners side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gap-min", type=float, default=60.0, help="minutes between checkpoints, on average")
    parser.add_argument("--draws", type=int, default=1)
    options = parser.parse_args()
    print(describe_machine())
    print(f"{'draw':>4} {'checkpoints':>11} {'planner':>8} {'mean':>9} {'p50':>9} {'p99':>9} {'GPU-hours':>10}")
    for seed in range(options.draws):
        stream = draw_stream(seed, options)
        for name, config in PLANNERS.items():
            cpu_s = time.process_time()
            waits, hours = run_stream(stream, config, options.nodes)
            p50, p99 = np.percentile(waits, [50, 99])
            print(
                f"{seed:>4} {len(waits):>11} {name:>8} {waits.mean():>7.0f} s {p50:>7.0f} s {p99:>7.0f} s "
                f"{hours:>10.1f}   ({time.process_time() - cpu_s:.0f} s of CPU)",
                flush=True,
            )


if __name__ == "__main__":
    main()
