"""Published runs as graphs of captured layers: what the benchmark builds on."""

from __future__ import annotations

import polars as pl
import pytest

from proving.benchmarks.mlperf_steps import fit_factor, layer_of, slowest_of, state_gib, step_seconds, write_step

RUN = {
    "benchmark": "llama2_70b_lora",
    "accelerator": "NVIDIA H100-SXM5-80GB",
    "tensor_parallel": 4,
    "pipeline_parallel": 1,
    "virtual_pipeline": 1,
    "context_parallel": 1,
    "micro_batch": 1,
    "data_parallel": 2,
    "accumulation": 4,
    "precision": "fp8",
}


def test_the_fitted_factor_gives_the_measured_step() -> None:
    graph, costs = write_step(RUN)
    assert step_seconds(graph, costs, fit_factor(graph, costs, 3.67)) == pytest.approx(3.67, rel=1e-3)


def test_forward_and_backward_take_what_was_captured() -> None:
    graph, _ = write_step(RUN)
    layer = layer_of(RUN)
    assert layer is not None
    total = dict(graph.ops.group_by("name").agg(pl.col("duration_ns").sum()).iter_rows())
    assert total["backward"] / total["forward"] == pytest.approx(layer.backward_ns / layer.forward_ns, rel=1e-3)


def test_a_slice_that_was_never_captured_is_not_guessed() -> None:
    assert layer_of({**RUN, "tensor_parallel": 8}) is None


def test_the_slowest_of_more_gpus_is_slower() -> None:
    assert 0 == slowest_of(1) < slowest_of(8) < slowest_of(512) < slowest_of(8192) < 4


def test_optimizer_state_halves_with_twice_the_replicas() -> None:
    assert state_gib({**RUN, "data_parallel": 4}) == pytest.approx(state_gib(RUN) / 2)


def test_memory_that_more_replicas_free_is_what_was_published() -> None:
    # Medians of MLPerf Training 5.0's peak_memory_gib, Llama 3.1 405B on 512 and 8,192 H100s.
    layout = {"tensor_parallel": 8, "pipeline_parallel": 8, "virtual_pipeline": 8, "context_parallel": 2}
    run = {**RUN, **layout, "benchmark": "llama31_405b", "accumulation": 8}
    freed = state_gib({**run, "data_parallel": 4}) - state_gib({**run, "data_parallel": 64})
    assert freed == pytest.approx(7.92, rel=0.01)
