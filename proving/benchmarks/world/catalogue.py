"""The captures of this world with fine records; `lives.py` has jobs that come and go, `coarse.py` poor exporters."""

from __future__ import annotations

import numpy as np

from proving.benchmarks.world import faults
from proving.benchmarks.world.captures import Capture
from proving.benchmarks.world.exporters import ExporterConfig
from proving.benchmarks.world.fabric import DUAL_TOR, RAIL, TREE, FabricConfig, slow_addresses
from proving.benchmarks.world.site import Site


def slow_gpu_on_rails(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=18, hosts_per_leaf=9))
    late = site.job("ddp-slow-gpu", 4, site.ddp(), health=site.slow_gpu())
    late.culprit = faults.slow_compute(site.fabric, late.phases[0].hosts[1])
    jobs = [late, site.job("fsdp", 4, site.fsdp(), habits=site.habits())]
    jobs.append(site.job("pipeline", 8, site.pipeline(4, embedding_mb=64.0)))
    return Capture(fabric=site.fabric, jobs=jobs, seconds=75, note="rails; a slow GPU in DDP; FSDP, 1F1B healthy")


def heavy_stage_on_one_nic(rng: np.random.Generator) -> Capture:
    config = FabricConfig(kind=TREE, num_hosts=24, nics_per_host=1, nic_gbit=200, hosts_per_leaf=6, network="172.20")
    site = Site(rng, config)
    near, far = [h for h in site.free if h < 6][:2], [h for h in site.free if h >= 18][:2]
    site.free = [h for h in site.free if h not in near + far]
    hurt = site.job("ddp-polarised", near + far, site.ddp(layers=24, hidden=1024, forward=0.05))
    site.fabric.polarised.update({(address, "leaf-3"): float(rng.uniform(0.2, 0.3)) for address in near})
    hurt.culprit = faults.slow_path(site.fabric, "leaf-0", near + far)
    heavy = site.job("pipeline-heavy", 8, site.pipeline(4, heavy={2: float(rng.uniform(1.2, 1.35))}))
    heavy.culprit = faults.heavy_stage(2)
    jobs = [heavy, hurt, site.job("ddp", 6, site.ddp()), site.job("fsdp", 4, site.fsdp())]
    note = "one NIC a host; a heavy stage; DDP over a polarised path; DDP, FSDP healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=90, note=note)


def interleaved_hsdp_experts(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=20, hosts_per_leaf=20, host_prefix="gpu"))
    late = site.job("hsdp-slow-host", 6, site.fsdp(shard_hosts=1, layers=32, forward=0.009), health=site.slow_host(3))
    late.culprit = faults.slow_compute(site.fabric, late.phases[0].hosts[3])
    chunks = site.pipeline(4, schedule="interleaved", chunks=2, forward=0.018, microbatches=8, activation_mb=12.0)
    jobs = [late, site.job("interleaved", 8, chunks), site.job("experts", 4, site.experts())]
    return Capture(fabric=site.fabric, jobs=jobs, seconds=75, note="rails; slow host in HSDP; interleaved, MoE healthy")


def healthy_dual_tor(rng: np.random.Generator) -> Capture:
    config = FabricConfig(kind=DUAL_TOR, num_hosts=16, nics_per_host=4, hosts_per_leaf=8, host_prefix="hpn-")
    site = Site(rng, config)
    pausing = site.health(pause_chance=0.0005, pause_seconds=0.06)
    jobs = [
        site.job("ddp-accumulation", 4, site.ddp(accumulation=4), health=pausing, habits=site.habits()),
        site.job("zero-bubble", 4, site.pipeline(4, schedule="zero_bubble")),
        site.job("ring-attention", 4, site.ring_attention(2)),
    ]
    exporter = ExporterConfig(queue_pairs=2)
    note = "four NICs a host on dual ToRs, two queue pairs a connection; all healthy, with garbage collection"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=80, exporter=exporter, note=note)


def slow_link_in_fsdp(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=12, hosts_per_leaf=12))
    hurt = site.job("fsdp-slow-link", 4, site.fsdp(layers=32, layer_mb=416.0, forward=0.0035))
    address = site.fabric.nics_of(hurt.phases[0].hosts[2])[int(rng.integers(8))]
    slow_addresses(site.fabric, {address: float(rng.uniform(0.15, 0.25))})
    hurt.culprit = faults.slow_link(site.fabric, address)
    jobs = [
        hurt,
        site.job("mics", 4, site.fsdp(shard_hosts=2, layers=26, layer_mb=160.0, forward=0.009)),
        site.job("ddp", 2, site.ddp()),
    ]
    return Capture(fabric=site.fabric, jobs=jobs, seconds=45, note="rails; a degraded NIC in FSDP; MiCS, DDP healthy")


def hangs(rng: np.random.Generator) -> Capture:
    config = FabricConfig(kind=TREE, num_hosts=16, nics_per_host=2, hosts_per_leaf=8, network="10.7")
    site = Site(rng, config)
    rank = int(rng.integers(8, 24))
    stops = site.job("ddp-hang", 4, site.ddp(), health=site.health(hang_rank=rank, hang_time=41.3), state="stopped")
    stops.culprit = faults.hang_at(site.fabric, [stops.phases[0].hosts[rank // 8]])
    cut = site.job("pipeline-hang", 8, site.pipeline(4, cut=(30, 1, 1)), state="stopped")
    hosts = cut.phases[0].hosts
    cut.culprit = faults.hang_at(site.fabric, [hosts[1 * 2 + 1], hosts[2 * 2 + 1]])
    jobs = [stops, cut, site.job("fsdp", 4, site.fsdp())]
    note = "two NICs a host; DDP hangs at a rank, a pipeline between stages 1 and 2; FSDP healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=75, note=note)


def contention(rng: np.random.Generator) -> Capture:
    config = FabricConfig(
        kind=TREE, num_hosts=16, nics_per_host=1, nic_gbit=100, hosts_per_leaf=4, shared_uplinks=True, network="10.31"
    )
    site = Site(rng, config)
    first, second = [0, 1, 4, 5], [2, 3, 6, 7]  # both jobs cross between leaf-0 and leaf-1
    jobs = [site.job("ddp-a", first, site.ddp(layers=24, hidden=1024, forward=0.08))]
    jobs.append(site.job("ddp-b", second, site.ddp(layers=24, hidden=1024, forward=0.11)))
    for job in jobs:
        job.culprit = faults.contention(site.fabric, ["leaf-0", "leaf-1"])
    jobs.append(site.job("fsdp", [8, 9, 10, 11], site.fsdp()))
    jobs.append(site.job("ddp-c", [12, 13, 15], site.ddp()))
    note = "one NIC a host, thin uplinks; two DDP jobs share two leaves' uplinks; two jobs inside leaves healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=75, note=note)


def messages(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=8, hosts_per_leaf=8, nic_gbit=200))
    late = site.job("ddp-slow-gpu", 2, site.ddp(layers=12, hidden=768), health=site.slow_gpu())
    late.culprit = faults.slow_compute(site.fabric, late.phases[0].hosts[1])
    jobs = [late, site.job("fsdp", 2, site.fsdp(layers=16, layer_mb=100.0, forward=0.02))]
    jobs.append(site.job("pipeline", 4, site.pipeline(2, microbatches=8, gradient_mb=300.0)))
    exporter = ExporterConfig(style="messages")
    note = "rails; one record per RDMA write of 512 KiB; a slow GPU in DDP; FSDP and 1F1B healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=40, exporter=exporter, note=note)


def hot_expert(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=14, hosts_per_leaf=7, host_prefix="a100-"))
    hot = site.job("experts-hot", 4, site.experts(hot={8 + int(rng.integers(8)): float(rng.uniform(1.8, 2.4))}))
    hot.culprit = faults.uneven_load(site.fabric, hot.phases[0].hosts[1])
    late = site.job("ring-attention-slow", 4, site.ring_attention(4), health=site.slow_host(2))
    late.culprit = faults.slow_compute(site.fabric, late.phases[0].hosts[2])
    jobs = [hot, late, site.job("diloco", 4, site.diloco()), site.job("ddp", 2, site.ddp())]
    note = "rails; a hot expert; a slow host in ring attention; DiLoCo, DDP healthy"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=60, note=note)


def slow_leaf(rng: np.random.Generator) -> Capture:
    site = Site(rng, FabricConfig(kind=RAIL, num_hosts=32, hosts_per_leaf=16))
    near, far = [h for h in site.free if h < 16], [h for h in site.free if h >= 16]
    rail = int(rng.integers(8))
    leaf = f"leaf-p0-r{rail}"
    slow_addresses(site.fabric, {h * 8 + rail: 0.2 for h in range(16)})
    jobs = [site.job("ddp", near[:6], site.ddp(layers=24, hidden=2048, forward=0.035))]
    jobs.append(site.job("fsdp", near[6:10], site.fsdp(layers=26, layer_mb=416.0, forward=0.004)))
    for job in jobs:
        job.culprit = faults.slow_switch(site.fabric, leaf)
    jobs.append(site.job("pipeline", far[:16], site.pipeline(8, microbatches=12, forward=0.02)))
    note = "rails in two pods; one leaf of the first pod at 20 %; a healthy pipeline in the second"
    return Capture(fabric=site.fabric, jobs=jobs, seconds=60, note=note)


FINE = (
    slow_gpu_on_rails, heavy_stage_on_one_nic, interleaved_hsdp_experts, healthy_dual_tor, slow_link_in_fsdp, hangs,
    contention, messages, hot_expert, slow_leaf,
)  # fmt: skip
