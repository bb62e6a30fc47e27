"""Whole scenarios: laws that flows, spans and truth keep together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from small_scenarios import small

from prism.collect.tables import read_flows
from prism.lab.scenarios import make_scenario, write_scenario
from prism.lab.scenarios.measurement import Measurement
from prism.lab.scenarios.scenario import place_jobs
from prism.records import FLOWS, SPANS, TOPOLOGY, read_table

EXACT = Measurement(byte_jitter=0)


@pytest.fixture(scope="module")
def plain():
    return make_scenario(replace(small(), measurement=EXACT), seed=3)


def steps_of(run, job: int = 0) -> pl.DataFrame:
    return pl.DataFrame(run.truth["jobs"][job]["steps"])


def test_tables_have_their_shapes(plain):
    for frame, shape in ((plain.flows, FLOWS), (plain.spans, SPANS), (plain.topology, TOPOLOGY)):
        assert shape.conform(frame).equals(frame)


def test_every_endpoint_of_a_flow_is_in_the_topology_and_of_its_job(plain):
    known = set(plain.topology["address"])
    seen = set(plain.flows["src"]) | set(plain.flows["dst"])
    assert seen <= known
    assert seen <= set(plain.truth["jobs"][0]["endpoints"])


def test_the_same_seed_gives_the_same_scenario_and_another_does_not(plain):
    scenario = replace(small(), measurement=EXACT)
    again, other = make_scenario(scenario, 3), make_scenario(scenario, 4)
    assert again.flows.equals(plain.flows) and again.spans.equals(plain.spans) and again.truth == plain.truth
    assert not other.flows.equals(plain.flows)


def test_shifting_the_capture_shifts_every_time_and_nothing_else(plain):
    scenario = replace(small(), measurement=EXACT)
    later = make_scenario(replace(scenario, epoch_s=scenario.epoch_s + 100), 3)
    shift = 100 * 10**9
    back = later.flows.with_columns(pl.col("start_ns") - shift, pl.col("end_ns") - shift)
    assert back.equals(plain.flows)
    assert (steps_of(later)["start_ns"] - shift).equals(steps_of(plain)["start_ns"])


def test_flows_lie_inside_the_steps_and_the_capture(plain):
    steps = steps_of(plain)
    inside = plain.flows.filter(pl.col("end_ns") <= steps["end_ns"].max())
    begins = np.searchsorted(steps["start_ns"].to_numpy(), inside["start_ns"].to_numpy(), side="right") - 1
    assert (begins >= 0).all()
    assert (inside["end_ns"].to_numpy() <= steps["end_ns"].to_numpy()[begins]).all()
    assert plain.flows["end_ns"].max() <= plain.truth["end_ns"]


def test_steps_follow_each_other_and_take_alike(plain):
    steps = steps_of(plain)
    length = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    assert steps.height > 5
    assert (steps["start_ns"].to_numpy()[1:] >= steps["end_ns"].to_numpy()[:-1] - 1_000_000).all()
    assert length.std() / length.mean() < 0.05
    assert length.std() > 0


def test_bytes_of_every_step_are_those_of_the_plan(plain):
    """2 replicas, 4 stages, 4 tensor ranks: activations to and fro, and gradients around rings of two."""
    steps = steps_of(plain)
    counted = plain.flows.with_columns(
        pl.Series(
            "step", np.searchsorted(steps["start_ns"].to_numpy(), plain.flows["start_ns"].to_numpy(), side="right") - 1
        )
    ).filter(pl.col("step") < steps.height - 1)
    totals = counted.group_by("step").agg(pl.col("bytes").sum())["bytes"]
    assert totals.n_unique() == 1
    # Stages lie on a host each, both replicas of a stage with it: only pipeline messages cross hosts.
    activation = 8 * 2048 * 2048 * 2 // 4
    assert totals[0] == activation * 8 * 2 * 3 * 8  # micro-batches, ways, boundaries, ranks of a stage


def test_pairs_of_the_truth_are_exactly_those_that_sent(plain):
    pairs = {(p["src"], p["dst"]) for p in plain.truth["jobs"][0]["pairs"]}
    assert pairs == set(plain.flows.select("src", "dst").iter_rows())


def test_groups_that_cross_hosts_are_those_whose_pairs_send(plain):
    job = plain.truth["jobs"][0]
    assert {label.split("-")[0] for label in job["crossing"]} == {"pp0", "pp1", "pp2"}
    assert set(job["crossing"]) == set(plain.spans.filter(pl.col("kind") == "pp")["group"])


def test_stages_of_the_truth_follow_the_pipeline(plain):
    job = plain.truth["jobs"][0]
    for pair in job["pairs"]:
        assert pair["kind"] == "pp"
        assert abs(job["stages"][pair["src"]] - job["stages"][pair["dst"]]) == 1


def test_spans_of_a_stream_do_not_overlap_and_match_the_flows(plain):
    for (_,), part in plain.spans.filter(pl.col("lane") == "stream 0").group_by("rank"):
        work = part.filter(~pl.col("name").is_in(["send", "recv"])).sort("start_ns")
        assert (work["start_ns"].to_numpy()[1:] >= work["end_ns"].to_numpy()[:-1]).all()
    sends = plain.spans.filter((pl.col("name") == "send") & (pl.col("kind") == "pp"))
    waits = plain.spans.filter(pl.col("kind") == "wait")  # a sender that waits has sent its first bytes already
    assert set(plain.flows["start_ns"]) <= set(sends["start_ns"]) | set(waits["start_ns"])


def test_written_files_read_back_equal(plain, tmp_path):
    write_scenario(plain, tmp_path / "out")
    assert read_flows(tmp_path / "out" / "flows.parquet").select(plain.flows.columns).equals(plain.flows)
    assert read_table(tmp_path / "out" / "topology.csv", TOPOLOGY).equals(plain.topology)
    assert read_table(tmp_path / "out" / "spans.parquet", SPANS).equals(plain.spans)


def test_sampled_flows_survive_the_disk(tmp_path):
    run = make_scenario(replace(small(duration=2), measurement=Measurement(sampling_rate=64, with_packets=True)), 1)
    write_scenario(run, tmp_path)
    back = read_flows(tmp_path / "flows.parquet")
    assert back["bytes"].sum() == run.flows["bytes"].sum()
    assert set(back["sampling_rate"]) == {64}


def test_gradients_over_hosts_make_rings_of_the_exact_size():
    run = make_scenario(
        replace(small("dp: 4, tp: 8, microbatches: 2, micro_batch: 8, overlap: false"), measurement=EXACT), 1
    )
    steps = steps_of(run)
    first = run.flows.filter(pl.col("start_ns").is_between(steps["start_ns"][1], steps["end_ns"][1]))
    per_nic = first.group_by("src").agg(pl.col("bytes").sum())["bytes"]
    model = small().jobs[0].model
    params = (model.layers * (model.attention_params + model.ffn_params) + 2 * model.embedding_params) / 8
    ring = 2 * 3 / 4 * params * 4  # two passes of 3/4 of FP32 gradients
    assert per_nic.len() == 32
    assert per_nic.to_numpy() == pytest.approx(ring, rel=0.01)


def test_two_jobs_share_hosts_but_no_pair():
    rest = "  - {id: b, model: {preset: gpt-1.3b, layers: 8}, dp: 4, tp: 2, pp: 2, micro_batch: 8, placement: {gpus: [4, 5, 6, 7]}}"
    run = make_scenario(
        small("dp: 8, tp: 2, micro_batch: 4, placement: {gpus: [0, 1, 2, 3]}", rest=rest, duration=3), 1
    )
    a, b = run.truth["jobs"]
    assert a["hosts"] == b["hosts"]
    assert not set(a["endpoints"]) & set(b["endpoints"])


def test_shared_addresses_and_renaming_hold_in_flows_topology_and_truth_alike():
    for measurement in (Measurement(shared_addresses=True), Measurement(renamed=True)):
        run = make_scenario(replace(small(duration=3), measurement=measurement), 1)
        assert run.topology["address"].is_unique().all()
        assert set(run.flows["src"]) <= set(run.topology["address"])
        assert {p["src"] for p in run.truth["jobs"][0]["pairs"]} == set(run.flows["src"])
    assert set(run.truth["names"].values()) >= set(run.flows["src"])
    assert all(name.startswith("172.") for name in run.flows["src"])


def test_storage_sees_samples_and_checkpoints():
    job = "dp: 2, tp: 4, pp: 4, microbatches: 8, micro_batch: 8, data_loading: true, checkpoint: {every_steps: 4, storage_gb_per_s: 20}"
    run = make_scenario(replace(small(job), measurement=EXACT), 1)
    store = set(run.truth["storage"])
    read = run.flows.filter(pl.col("src").is_in(store))
    written = run.flows.filter(pl.col("dst").is_in(store))
    steps = steps_of(run)
    saved = (steps["index"] + 1) % 4 == 0
    params = run.truth["jobs"][0]["params"]
    assert read.height >= 4 * (steps.height - 1)
    assert written["bytes"].sum() == pytest.approx(saved.sum() * 14 * params, rel=0.01)
    length = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    assert length[saved.to_numpy()].min() > length[~saved.to_numpy()].max() + 14 * params / 20 * 0.9


def test_a_checkpoint_in_the_background_holds_nothing_up_but_is_seen():
    job = "dp: 2, tp: 4, pp: 4, microbatches: 8, micro_batch: 8, checkpoint: {every_steps: 4, blocking: false, storage_gb_per_s: 20}"
    run = make_scenario(small(job), 1)
    steps = steps_of(run)
    length = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    assert length.max() < 1.2 * length.min()
    assert run.flows.filter(pl.col("dst").is_in(run.truth["storage"])).height > 0


def test_evaluations_pause_and_restarts_leave_a_hole():
    run = make_scenario(small("dp: 2, tp: 4, pp: 4, micro_batch: 8, evaluation: {every_steps: 4, pause_s: 1}"), 1)
    length = (steps_of(run)["end_ns"] - steps_of(run)["start_ns"]).to_numpy()
    assert length[3] > length[2] + 0.99e9
    run = make_scenario(small("dp: 2, tp: 4, pp: 4, micro_batch: 8, restarts: [{at_s: 3, down_s: 2}]"), 1)
    times = run.flows.filter(
        pl.col("start_ns").is_between(run.truth["start_ns"] + 3 * 10**9, run.truth["start_ns"] + 5 * 10**9)
    )
    assert times.is_empty()
    assert run.flows["start_ns"].max() > run.truth["start_ns"] + 6 * 10**9


def test_expert_traffic_differs_from_step_to_step():
    scenario = small("dp: 32, ep: 16, microbatches: 1", duration=1, model="{preset: moe-16b, layers: 2}")
    run = make_scenario(replace(scenario, measurement=EXACT), 1)
    kinds = {(p["src"], p["dst"]): p["kinds"] for p in run.truth["jobs"][0]["pairs"]}
    only = [pair for pair, found in kinds.items() if found == ["ep"]]
    assert only
    sizes = run.flows.filter((pl.col("src") == only[0][0]) & (pl.col("dst") == only[0][1]))["bytes"]
    assert sizes.n_unique() > 0.9 * sizes.len()


def test_jobs_without_given_hosts_take_the_free_ones_in_order():
    rest = "  - {id: b, dp: 8}"
    scenario = small("dp: 8", rest=rest)
    assert [sorted(set(layout.host.tolist())) for layout in place_jobs(scenario)] == [[0], [1]]
