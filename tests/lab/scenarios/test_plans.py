"""Job plans: schedules run, sizes follow from the model, groups cover the ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.errors import BadConfigError
from prism.simulate import solve
from prism.simulate.cluster_file import load_cluster
from prism.simulate.costs import ClusterCosts
from prism.simulate.messages import find_messages
from prism.simulate.plans.job import Job
from prism.simulate.plans.layout import lay_out
from prism.simulate.plans.model import MODELS, ModelShape
from prism.simulate.plans.program import build_step
from prism.simulate.plans.schedule import order_tasks
from prism.simulate.plans.sizes import size_up

CLUSTER = load_cluster("dgx-h100", num_hosts=64)
TINY = ModelShape(layers=16, hidden=1024, ffn=2816, heads=16, kv_heads=16, vocab=32000, seq=2048)


def plan(job: Job, per_host: int = 8):
    rank = np.arange(job.num_gpus)
    layout = lay_out(job, rank // per_host, rank % per_host)
    return layout, build_step(layout, size_up(job, "H100"))


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-7b", 6.74),
        ("llama-8b", 8.03),
        ("llama-13b", 13.0),
        ("llama-70b", 69.0),
        ("mixtral-8x7b", 46.7),
        ("gpt-175b", 175),
    ],
)
def test_parameter_counts_are_those_the_authors_state(name, billions):
    assert MODELS[name].params == pytest.approx(billions * 1e9, rel=0.01)


@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved", "zero_bubble"]),
    stages=st.integers(1, 8),
    rounds=st.integers(1, 4),
    chunks=st.integers(1, 3),
)
def test_every_schedule_runs_each_piece_once_and_in_order(schedule, stages, rounds, chunks):
    chunks = chunks if schedule == "interleaved" and stages > 1 else 1
    for stage in range(stages):
        tasks = order_tasks(schedule, stage, stages, chunks, rounds * stages)
        place = {task: i for i, task in enumerate(tasks)}
        assert len(place) == len(tasks)
        phases = Counter(task.phase for task in tasks)
        expected = chunks * rounds * stages
        assert phases["F"] == phases["B"] == expected
        assert phases["W"] == (expected if schedule == "zero_bubble" and stages > 1 else 0)
        for task, at in place.items():
            if task.phase == "B":
                assert place[task._replace(phase="F")] < at
            if task.phase == "W":
                assert place[task._replace(phase="B")] < at


@settings(max_examples=12)
@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved", "zero_bubble"]),
    pp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2, 4]), tp=st.sampled_from([1, 2, 16]),
    cp=st.sampled_from([1, 2]), sharding=st.sampled_from(["none", "zero1", "zero2"]), overlap=st.booleans(),
    order=st.sampled_from(["tp-cp-dp-pp", "tp-cp-pp-dp", "tp-pp-dp-cp", "dp-tp-cp-pp"]),
)  # fmt: skip
def test_every_layout_runs_to_its_end(schedule, pp, dp, tp, cp, sharding, overlap, order):
    job = Job(
        id="j", model=TINY, pp=pp, dp=dp, tp=tp, cp=cp, schedule=schedule, sharding=sharding, overlap=overlap,
        microbatches=2 * pp, order=order,
    )  # fmt: skip
    _, graph = plan(job)
    assert solve(graph, ClusterCosts(CLUSTER)).total_ns > 0


@pytest.mark.parametrize("sharding", ["fsdp", "hsdp"])
@pytest.mark.parametrize("overlap", [True, False])
def test_fully_sharded_jobs_run_to_their_end(sharding, overlap):
    _, graph = plan(Job(id="j", model=TINY, dp=32, sharding=sharding, overlap=overlap, microbatches=2))
    assert solve(graph, ClusterCosts(CLUSTER)).total_ns > 0


@pytest.mark.parametrize("overlap", [True, False])
def test_fsdp_gathers_every_layer_twice_and_sums_every_parameter_once(overlap):
    _, graph = plan(Job(id="j", model=TINY, dp=16, sharding="fsdp", overlap=overlap, microbatches=1))
    moved = {n: graph.ops.filter(pl.col("name") == n)["bytes"].sum() for n in ("gather parameters", "sum gradients")}
    embeddings = 2 * TINY.embedding_params
    assert moved["sum gradients"] == 4 * TINY.params
    assert moved["gather parameters"] == 2 * (2 * (TINY.params - embeddings) + embeddings)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("sharding", "kind"), [("none", "all_reduce"), ("zero1", "reduce_scatter")])
def test_a_step_sums_the_gradient_of_every_parameter_once(sharding, kind, overlap):
    job = Job(id="j", model=TINY, dp=4, pp=2, tp=2, sharding=sharding, overlap=overlap, bucket_mb=10)
    _, graph = plan(job)
    summed = graph.ops.filter(pl.col("name") == "sum gradients")
    assert set(summed["kind"].cast(pl.String)) == {kind}
    # One class per stage: each reduces the parameters of a tensor-parallel slice.
    assert summed["bytes"].sum() * job.tp == pytest.approx(4 * TINY.params, rel=1e-4)


def test_zero2_sums_gradients_in_every_micro_batch_and_zero1_once():
    counts = {}
    for sharding in ("zero1", "zero2"):
        job = Job(id="j", model=TINY, dp=4, sharding=sharding, microbatches=4, bucket_mb=1e6)
        counts[sharding] = plan(job)[1].ops.filter(pl.col("name") == "sum gradients").height
    assert counts["zero2"] == 4 * counts["zero1"]


def test_pipeline_messages_are_the_activations_of_one_micro_batch():
    job = Job(id="j", model=TINY, dp=1, pp=4, tp=8, microbatches=6, micro_batch=2)
    messages = find_messages(plan(job)[1], CLUSTER)
    pipeline = messages.filter(pl.col("kind") == "pp")
    assert set(pipeline["bytes"]) == {2 * 2048 * 1024 * 2 // 8}
    assert pipeline.height == 2 * 3 * 8 * 6  # both ways over three boundaries


def test_tied_embeddings_are_summed_between_first_and_last_stage_only():
    job = Job(id="j", model=replace(TINY, tied=True), dp=1, pp=4, tp=8)
    messages = find_messages(plan(job)[1], CLUSTER).filter(pl.col("kind") == "embedding")
    assert {(s // 8, d // 8) for s, d in messages.select("src", "dst").iter_rows()} == {(0, 3), (3, 0)}


def test_experts_exchange_and_sum_among_their_own_replicas():
    model = ModelShape(
        layers=4, hidden=1024, ffn=512, heads=16, kv_heads=16, vocab=32000, seq=1024, experts=32, top_k=2
    )
    job = Job(id="j", model=model, dp=32, ep=16, microbatches=1)
    layout, graph = plan(job)
    messages = find_messages(graph, CLUSTER)
    exchanged = messages.filter(pl.col("kind") == "ep")
    per_message = 1024 * 1024 * 2 * 2 // 16  # tokens x hidden x BF16 x two experts, over 16 ranks
    assert set(exchanged["bytes"]) == {per_message}
    groups = {g.slot: g.ranks.shape for g in layout.groups}
    assert groups["ep"] == (2, 16) and groups["expert_dp"] == (16, 2) and groups["dp"] == (1, 32)


def test_tensor_groups_inside_a_host_send_nothing_and_across_hosts_do():
    inside = find_messages(plan(Job(id="j", model=TINY, dp=2, tp=8))[1], CLUSTER)
    across = find_messages(plan(Job(id="j", model=TINY, dp=2, tp=16))[1], CLUSTER)
    assert "tp" not in set(inside["kind"])
    assert "tp" in set(across["kind"])


@settings(max_examples=20)
@given(dp=st.integers(1, 4), tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]), cp=st.integers(1, 3))
def test_groups_of_a_purpose_hold_every_rank_once(dp, tp, pp, cp):
    job = Job(id="j", model=TINY, dp=dp, tp=tp, pp=pp, cp=cp)
    rank = np.arange(job.num_gpus)
    layout = lay_out(job, rank // 8, rank % 8)
    for group in layout.groups:
        if group.kind != "pp":
            assert sorted(group.ranks.ravel().tolist()) == list(range(job.num_gpus))
    assert np.bincount(layout.stage, minlength=pp).tolist() == [job.num_gpus // pp] * pp


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"pp": 3}, "layers"),
        ({"tp": 5}, "heads"),
        ({"ep": 2, "dp": 2}, "no experts"),
        ({"schedule": "interleaved", "pp": 4, "microbatches": 6}, "multiple of pp"),
        ({"sharding": "fsdp", "pp": 2}, "fsdp"),
        ({"sharding": "hsdp", "dp": 12, "shard_ranks": 8}, "shard_ranks"),
        ({"schedule": "1f1"}, "did you mean '1f1b'"),
        ({"efficiency": 0}, "efficiency"),
    ],
)
def test_a_plan_that_cannot_be_says_why(settings_, words):
    with pytest.raises(BadConfigError, match=words):
        Job(id="j", model=TINY, **settings_)
