"""Captures with fine records in which jobs come, go, pause, grow, shrink, restart and follow each other."""

from __future__ import annotations

import numpy as np

from proving.benchmarks.world import faults
from proving.benchmarks.world.captures import Capture
from proving.benchmarks.world.exporters import ExporterConfig
from proving.benchmarks.world.fabric import RAIL, TREE, FabricConfig
from proving.benchmarks.world.life import Job, Phase
from proving.benchmarks.world.site import Site


def ends_and_starts(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=20, hosts_per_leaf=20))
    hosts = site.take(4)
    ends = Phase(hosts=hosts, program=site.ddp(), begin=-4.0, end=38.0)
    starts = Phase(hosts=site.take(8), program=site.pipeline(4, forward=0.02), begin=31.5)
    few = Phase(
        hosts=site.take(2), program=site.fsdp(layers=26, layer_mb=160.0, forward=0.009), begin=12.0, max_steps=40
    )
    jobs = [
        Job(name="ddp-ends", phases=[ends], health=site.health(), state="ended"),
        Job(name="pipeline-starts", phases=[starts], health=site.health()),
        Job(name="fsdp-starts-and-ends", phases=[few], health=site.health(), state="ended"),
        site.job("experts", 4, site.experts()),
    ]
    return Capture(
        fabric=site.fabric, jobs=jobs, seconds=90, note="jobs end after a whole step, and start; all healthy"
    )


def killed_and_evaluating(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=14, hosts_per_leaf=7, nic_gbit=200))
    killed = Phase(hosts=site.take(4), program=site.fsdp(), begin=-3.0, end=47.77, killed=True)
    pauses = site.habits(evaluate_every=45, evaluate_seconds=7.0)
    jobs = [
        Job(name="fsdp-killed", phases=[killed], health=site.health(), state="stopped"),
        site.job("ddp-evaluates", 4, site.ddp(), habits=pauses),
        site.job("pipeline", 4, site.pipeline(2, embedding_mb=96.0)),
    ]
    note = "FSDP is killed inside a step (by its owner: no culprit); DDP pauses for evaluation; 1F1B healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=100, note=note)


def one_after_the_other(rng: np.random.Generator) -> Capture:
    config = FabricConfig(kind=TREE, num_hosts=18, nics_per_host=2, hosts_per_leaf=9, network="10.88", host_prefix="w")
    site = Site(rng, config)
    first, second = site.take(4), site.take(4)
    shape = {"layers": 24, "hidden": 1536}
    plans = [
        ("ddp-first", first, site.ddp(**shape), -3.0, 44.0),
        ("fsdp-second", first, site.fsdp(), 57.0, 200.0),
        ("trial-1", second, site.ddp(layers=24, hidden=1024, forward=0.11), -2.0, 51.0),
        ("trial-2", second, site.ddp(layers=24, hidden=1024, forward=0.14, accumulation=2), 63.0, 200.0),
    ]
    jobs = []
    for name, hosts, program, begin, end in plans:
        phase = Phase(hosts=hosts, program=program, begin=begin, end=end)
        jobs.append(Job(name=name, phases=[phase], health=site.health(), state="ended" if end < 100 else "running"))
    # With one host a stage, a slow host could not be told from a heavy stage: there are two.
    late = site.job("pipeline-slow-host", 8, site.pipeline(4), health=site.slow_host(3))
    late.culprit = faults.slow_compute(site.fabric, late.phases[0].hosts[3])
    note = "two pairs of jobs, each pair one after the other on the same hosts; a slow host in a steady pipeline"
    return Capture(fabric=site.fabric, jobs=[*jobs, late], seconds=115, note=note)


def elastic(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=16, hosts_per_leaf=16))
    six, four = site.take(6), site.take(4)
    ddp = {"layers": 24, "hidden": 1536, "forward": 0.12}
    fsdp = {"layers": 26, "layer_mb": 160.0, "forward": 0.01}
    shrinks = [
        Phase(hosts=six, program=site.ddp(**ddp), begin=-3.0, end=36.4, killed=True),
        Phase(hosts=six[:4] + six[5:], program=site.ddp(**ddp), begin=58.0),
    ]
    grows = [
        Phase(hosts=four[:3], program=site.fsdp(**fsdp), begin=-2.0, end=40.0),
        Phase(hosts=four, program=site.fsdp(**fsdp), begin=52.5),
    ]
    jobs = [
        Job(name="ddp-shrinks", phases=shrinks, health=site.health()),
        Job(name="fsdp-grows", phases=grows, health=site.health()),
        site.job("ring-attention", 4, site.ring_attention(2)),
    ]
    return Capture(fabric=site.fabric, jobs=jobs, seconds=110, note="DDP loses a host and goes on; FSDP gains one")


def restarts(rng: np.random.Generator) -> Capture:
    config = FabricConfig(kind=TREE, num_hosts=14, nics_per_host=1, nic_gbit=400, hosts_per_leaf=14, network="192.168")
    site = Site(rng, config)
    hosts = site.take(4)
    ddp = {"layers": 24, "hidden": 1024, "forward": 0.13}
    again = [
        Phase(hosts=hosts, program=site.ddp(**ddp), begin=-3.0, end=33.3, killed=True),
        Phase(hosts=hosts, program=site.ddp(**ddp), begin=61.0),
    ]
    saves = site.habits(checkpoint_every=12, checkpoint_mb=9000.0, checkpoint_waits=4.0)
    late = site.job("fsdp-slow-gpu", 4, site.fsdp(forward=0.02), health=site.slow_gpu((1.25, 1.5)))
    late.culprit = faults.slow_compute(site.fabric, late.phases[0].hosts[1])
    jobs = [
        Job(name="ddp-restarts", phases=again, health=site.health(), habits=site.habits()),
        site.job("pipeline-saves", 4, site.pipeline(2, microbatches=8), habits=saves),
        late,
    ]
    note = "DDP crashes and restarts on its hosts; a pipeline stands still while it saves; a slow GPU in FSDP"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=110, note=note)


def hang_and_evaluations(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=16, hosts_per_leaf=8, nics_per_host=8))
    rank = int(rng.integers(16, 40))
    health = site.health(hang_rank=rank, hang_time=52.0)
    stops = site.job("pipeline-hang", 8, site.pipeline(4, forward=0.025), health=health, state="stopped")
    stops.culprit = faults.hang_at(site.fabric, [stops.phases[0].hosts[rank // 8]])
    pauses = site.habits(evaluate_every=25, evaluate_seconds=5.0)
    fsdp = site.fsdp(layers=26, layer_mb=160.0, forward=0.01)
    ends = Phase(hosts=site.take(2), program=site.diloco(inner_steps=10), begin=-3.0, end=60.0)
    jobs = [
        stops,
        site.job("fsdp-evaluates", 4, fsdp, habits=pauses),
        Job(name="diloco-ends", phases=[ends], health=site.health(), state="ended"),
    ]
    note = "a pipeline hangs at a rank; FSDP evaluates with forward passes; DiLoCo ends; two queue pairs a connection"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=95, exporter=ExporterConfig(queue_pairs=2), note=note)


LIVES = (ends_and_starts, killed_and_evaluating, one_after_the_other, elastic, restarts, hang_and_evaluations)
