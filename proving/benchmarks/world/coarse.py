"""Captures by exporters with timeouts, coarse clocks, sums, sampling, loss and double export."""

from __future__ import annotations

import numpy as np

from proving.benchmarks.world import faults
from proving.benchmarks.world.captures import Capture
from proving.benchmarks.world.exporters import ExporterConfig
from proving.benchmarks.world.fabric import RAIL, TREE, FabricConfig
from proving.benchmarks.world.life import Job, Phase
from proving.benchmarks.world.site import Site

RAILS = FabricConfig(kind=RAIL, num_hosts=16, hosts_per_leaf=8)
ONE_NIC = FabricConfig(kind=TREE, num_hosts=16, nics_per_host=1, nic_gbit=200, hosts_per_leaf=4, network="10.200")


def healthy_three(site: Site) -> list[Job]:
    """What most of these captures watch: DDP, FSDP and a pipeline, all in good health."""
    return [
        site.job("ddp", 4, site.ddp(), habits=site.habits()),
        site.job("fsdp", 4, site.fsdp()),
        site.job("pipeline", 4, site.pipeline(2, embedding_mb=64.0)),
    ]


def advised_timeouts(rng: np.random.Generator) -> Capture:
    site = Site(rng, RAILS)
    exporter = ExporterConfig(style="flows", idle=0.1, active=1.0, resolution_ns=1_000_000)
    note = "idle timeout 100 ms, active 1 s, times in milliseconds; all healthy"
    return Capture(fabric=site.fabric, jobs=healthy_three(site), seconds=90, exporter=exporter, note=note)


def short_idle(rng: np.random.Generator) -> Capture:
    site = Site(rng, RAILS)
    ddp = site.job("ddp-slow-gpu", 4, site.ddp(), health=site.slow_gpu((1.3, 1.5)))
    fsdp = site.job("fsdp-slow-gpu", 4, site.fsdp(), health=site.slow_gpu((1.3, 1.5)))
    for job in (ddp, fsdp):
        job.culprit = faults.slow_compute(site.fabric, job.phases[0].hosts[1])
    jobs = [ddp, fsdp, site.job("hsdp", 4, site.fsdp(shard_hosts=1))]
    exporter = ExporterConfig(style="flows", idle=0.01, active=1.0, acks=True)
    note = "idle timeout 10 ms, active 1 s, acknowledgements exported; slow GPUs in DDP and FSDP; HSDP healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=60, exporter=exporter, note=note)


def long_timeouts(rng: np.random.Generator) -> Capture:
    site = Site(rng, ONE_NIC)
    exporter = ExporterConfig(style="flows", idle=15.0, active=60.0, resolution_ns=1_000_000)
    note = "idle timeout 15 s, active 60 s: no step can be seen; all healthy"
    return Capture(fabric=site.fabric, jobs=healthy_three(site), seconds=240, exporter=exporter, note=note)


def whole_seconds(rng: np.random.Generator) -> Capture:
    site = Site(rng, RAILS)
    jobs = healthy_three(site)
    ends = Phase(hosts=site.take(2), program=site.ddp(), begin=-2.0, end=70.0)
    jobs.append(Job(name="ddp-ends", phases=[ends], health=site.health(), state="ended"))
    exporter = ExporterConfig(style="flows", idle=1.0, active=10.0, resolution_ns=1_000_000_000, by_pair=True)
    note = "one flow per pair of addresses, both directions together, whole seconds; all healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=150, exporter=exporter, note=note)


def minutes(rng: np.random.Generator) -> Capture:
    site = Site(rng, ONE_NIC)
    jobs = [*healthy_three(site), site.job("experts", 4, site.experts())]
    note = "one record per flow and minute; all healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=240, exporter=ExporterConfig(style="minutes"), note=note)


def sampled_thousand(rng: np.random.Generator) -> Capture:
    site = Site(rng, RAILS)
    exporter = ExporterConfig(
        style="flows", idle=0.5, active=10.0, sampling=1000, scaled=False, resolution_ns=1_000_000
    )
    note = "1 packet in 1,000, bytes as sampled; all healthy"
    return Capture(fabric=site.fabric, jobs=healthy_three(site), seconds=120, exporter=exporter, note=note)


def sampled_ten_thousand(rng: np.random.Generator) -> Capture:
    site = Site(rng, RAILS)
    jobs = [*healthy_three(site), site.job("ring-attention", 4, site.ring_attention(2))]
    exporter = ExporterConfig(
        style="flows", idle=0.5, active=5.0, sampling=10_000, loss=0.02, clock_spread=1e-3, resolution_ns=1_000_000
    )
    note = "1 packet in 10,000, scaled; 2 % of records lost; exporters' clocks differ by 1 ms; all healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=120, exporter=exporter, note=note)


def both_leaves(rng: np.random.Generator) -> Capture:
    site = Site(rng, ONE_NIC)
    jobs = [*healthy_three(site), site.job("hsdp", 4, site.fsdp(shard_hosts=1))]
    exporter = ExporterConfig(
        style="flows", idle=0.05, active=1.0, sampling=32, both_leaves=True, loss=0.01, clock_spread=2e-4
    )
    note = "1 packet in 32, scaled; sender's and receiver's leaf export the same flows, clocks 0.2 ms apart; 1 % lost"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=90, exporter=exporter, note=note)


COARSE = (
    advised_timeouts, short_idle, long_timeouts, whole_seconds, minutes, sampled_thousand, sampled_ten_thousand,
    both_leaves,
)  # fmt: skip
