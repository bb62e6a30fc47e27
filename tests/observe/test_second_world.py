"""Small captures of the second world: layouts of experts, shards and pipelines, and a stop between two stages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from prism.observe import Diagnosis, diagnose
from proving.benchmarks.world.captures import Capture, Made, make_capture
from proving.benchmarks.world.fabric import DUAL_TOR, RAIL, TREE, FabricConfig
from proving.benchmarks.world.life import Program
from proving.benchmarks.world.site import Site

RAILS_4 = FabricConfig(kind=RAIL, num_hosts=4, hosts_per_leaf=4)
TWO_NICS_4 = FabricConfig(kind=TREE, num_hosts=4, nics_per_host=2, hosts_per_leaf=4)
TWO_NICS_8 = FabricConfig(kind=TREE, num_hosts=8, nics_per_host=2, hosts_per_leaf=8)
ONE_NIC_4 = FabricConfig(kind=TREE, num_hosts=4, nics_per_host=1, nic_gbit=200, hosts_per_leaf=4)
FOUR_NICS_4 = FabricConfig(kind=DUAL_TOR, num_hosts=4, nics_per_host=4, hosts_per_leaf=4)
ONE_NIC_8 = FabricConfig(kind=TREE, num_hosts=8, nics_per_host=1, hosts_per_leaf=8)


def run_alone(config: FabricConfig, program: Callable[[Site], Program], seed: int = 1, seconds: float = 15) -> Made:
    """One job on all hosts of a fabric."""
    site = Site(np.random.default_rng(seed), config)
    job = site.job("job", config.num_hosts, program(site))
    return make_capture(Capture(fabric=site.fabric, jobs=[job], seconds=seconds), seed)


def look(made: Made) -> Diagnosis:
    return diagnose(made.flows, made.topology)


def mics(site: Site) -> Program:
    return site.fsdp(shard_hosts=2, layers=12, layer_mb=160.0, forward=0.009)


@pytest.mark.parametrize(
    ("config", "program"),
    [
        (RAILS_4, mics),
        (TWO_NICS_4, mics),
        (ONE_NIC_4, lambda site: site.fsdp(shard_hosts=2, layers=12, layer_mb=64.0, forward=0.009)),
        (RAILS_4, lambda site: site.ring_attention(4)),
        (TWO_NICS_4, lambda site: site.ring_attention(4)),
        (RAILS_4, lambda site: site.experts(layers=4)),
        (TWO_NICS_4, lambda site: site.experts(layers=4)),
        (ONE_NIC_8, lambda site: site.experts(ep_hosts=4)),
        (TWO_NICS_8, lambda site: site.pipeline(4)),
        (ONE_NIC_8, lambda site: site.pipeline(8)),
    ],
    ids=[
        "mics-rails",
        "mics-two-nics",
        "mics-one-nic",
        "rings-rails",
        "rings-two-nics",
        "experts-rails",
        "experts-two-nics",
        "experts-one-nic",
        "pipeline-dp2",
        "pipeline-dp1",
    ],
)
def test_the_degrees_are_those_of_the_program(config: FabricConfig, program: Callable[[Site], Program]) -> None:
    made = run_alone(config, program)
    (job,) = look(made).jobs
    (truth,) = made.truth["jobs"]
    found, names = job.layout, ("dp", "pp", "tp", "cp", "ep")
    assert {d: getattr(found, d).value for d in names} == {d: truth[d] for d in names}
    assert found.dp.value * found.pp.value * found.tp.value * found.cp.value == truth["gpus"]


def test_where_four_nics_may_stand_for_four_gpus_or_eight_both_layouts_are_reported() -> None:
    (job,) = look(run_alone(FOUR_NICS_4, lambda site: site.fsdp(layers=12))).jobs
    said = {
        job.layout.dp.value: job.layout.joint,
        **{a.dp: a.probability for a in job.layout.alternatives if a.tp == a.cp == 1},
    }
    assert said.keys() == {16, 32}
    assert max(said.values()) < 0.5


@pytest.mark.parametrize(("stage", "replica"), [(0, 0), (1, 1), (2, 0)])
def test_a_stop_between_two_stages_names_both_ends(stage: int, replica: int) -> None:
    config = ONE_NIC_8
    site = Site(np.random.default_rng(2), config)
    job = site.job("job", 8, site.pipeline(4, cut=(12, stage, replica)), state="stopped")
    made = make_capture(Capture(fabric=site.fabric, jobs=[job], seconds=25), 2)
    (found,) = look(made).findings
    hosts = job.phases[0].hosts
    ends = {site.fabric.addresses[hosts[s * 2 + replica]] for s in (stage, stage + 1)}
    assert (found.kind, found.culprit.type) == ("hang", "group")
    assert set(found.culprit.id.split(",")) == ends
    assert "which of them stopped" in found.evidence
