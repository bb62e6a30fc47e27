"""LLMPrism's published method, as rebuilt: each phase does what is known of it, and it answers in Prism's own form."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.lab.scenarios import load_scenario, make_scenario
from prism.observe import Diagnosis, diagnose
from prism.observe.llmprism import diagnose_as_published, draw_published_timeline
from prism.observe.traffic.change_points import find_changes
from prism.observe.traffic.preparation import prepare_traffic
from prism.records import SPANS, TOPOLOGY

STEP_NS = 1_000_000_000


def train(
    steps: int,
    pairs: dict[tuple[str, str], tuple[int, ...]],
    *,
    first_ns: int = 0,
    slow: tuple[str, int, int] = ("", 0, 1),
) -> pl.DataFrame:
    """Flows of a job: in every step each pair sends 24 flows of its sizes by turns, some 5 ms apart, then all is quiet.

    `slow`: the flows of one source take so many times longer from a step on.
    """
    rows = []
    rng = np.random.default_rng(7)
    for step in range(steps):
        for (src, dst), sizes in pairs.items():
            for i in range(24):
                start = first_ns + step * STEP_NS + i * 5_000_000 + int(rng.integers(0, 1_000_000) if 0 < i < 23 else 0)
                longer = slow[2] if src == slow[0] and step >= slow[1] else 1
                rows.append((start, start + 2_000_000 * longer, src, dst, sizes[i % len(sizes)]))
    return pl.DataFrame(
        rows,
        schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "src": pl.String, "dst": pl.String, "bytes": pl.Int64},
        orient="row",
    ).sort("start_ns")


def topology_of(hosts: dict[str, list[str]]) -> pl.DataFrame:
    rows = [(a, h, i, f"leaf-{i}") for h, own in hosts.items() for i, a in enumerate(own)]
    return pl.DataFrame(rows, schema=TOPOLOGY.required, orient="row")


def kinds_of(found: Diagnosis) -> dict[tuple[str, str], str]:
    return {(p["src"], p["dst"]): p["kind"] for job in found.jobs for p in job.pairs.to_dicts()}


def test_a_change_of_level_is_found_where_it_is() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1, 60), rng.normal(12, 1, 60)])
    found = np.flatnonzero(find_changes(values, np.array([0, 120])))
    assert 60 in found and len(found) <= 3


def test_noise_of_one_level_holds_no_change() -> None:
    values = np.random.default_rng(1).normal(5, 2, 400)
    assert find_changes(values, np.array([0, 400])).sum() <= 2


@settings(max_examples=25, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(0.01, 1e6), st.integers(0, 100))
def test_moving_or_scaling_a_series_moves_no_change(shift: float, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(0, 1, 30), rng.normal(20, 1, 30)])
    begin = np.array([0, 60])
    assert (find_changes(values, begin) == find_changes(values * scale + shift, begin)).all()


def test_series_do_not_hear_each_other() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(0, 1, 50), rng.normal(1000, 1, 70)
    alone = np.concatenate([find_changes(a, np.array([0, 50])), find_changes(b, np.array([0, 70]))])
    assert (find_changes(np.concatenate([a, b]), np.array([0, 50, 120])) == alone).all()


def test_several_sizes_make_a_pair_dp_and_one_makes_it_pp() -> None:
    flows = train(8, {("a", "b"): (1_000_000, 3_000_000), ("b", "c"): (500_000,)})
    assert kinds_of(diagnose_as_published(flows)) == {("a", "b"): "dp", ("b", "c"): "pp"}


def test_dp_is_transitive() -> None:
    sizes = (1_000_000, 3_000_000)
    flows = train(8, {("a", "b"): sizes, ("b", "c"): sizes, ("c", "a"): (500_000,)})
    assert set(kinds_of(diagnose_as_published(flows)).values()) == {"dp"}


def test_clusters_on_the_same_servers_are_one_job_and_others_are_not() -> None:
    sizes = (1_000_000, 3_000_000)
    flows = train(6, {("a0", "b0"): sizes, ("a1", "b1"): sizes, ("c0", "d0"): sizes})
    hosts = {"A": ["a0", "a1"], "B": ["b0", "b1"], "C": ["c0"], "D": ["d0"]}
    found = diagnose_as_published(flows, topology_of(hosts))
    assert [job.endpoints for job in found.jobs] == [("a0", "a1", "b0", "b1"), ("c0", "d0")]


def test_what_is_no_gpus_nic_ties_no_jobs_together() -> None:
    sizes = (1_000_000, 3_000_000)
    flows = train(6, {("a", "b"): sizes, ("c", "d"): sizes, ("a", "store"): sizes, ("c", "store"): sizes})
    topology = pl.concat(
        [
            topology_of({h: [h] for h in "abcd"}),
            pl.DataFrame([("store", "store", None, None)], schema=TOPOLOGY.required, orient="row"),
        ]
    )
    assert [job.endpoints for job in diagnose_as_published(flows, topology).jobs] == [("a", "b"), ("c", "d")]


def test_steps_end_with_the_gradient_burst() -> None:
    found = diagnose_as_published(train(12, {("a", "b"): (1_000_000, 3_000_000)}))
    steps = found.jobs[0].steps
    assert steps.height == 11
    lengths = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    assert np.abs(lengths / STEP_NS - 1).max() < 1e-3


def test_a_slow_group_and_its_switch_are_reported_once() -> None:
    sizes = (1_000_000, 3_000_000)
    pairs = {(f"{h}0", f"{h}1"): sizes for h in "abcdef"}
    hosts = {f"{h}{i}": [f"{h}{i}"] for h in "abcdef" for i in (0, 1)}
    topology = topology_of(hosts).with_columns(
        switch=pl.lit("leaf-") + pl.col("address").str.slice(0, 1), host=pl.lit("all")
    )
    found = diagnose_as_published(train(10, pairs, slow=("c0", 4, 40)), topology)
    told = [(f.kind, f.culprit.id) for f in found.findings]
    assert told.count(("slow_group", "c0,c1")) == 1
    assert told.count(("slow_switch", "leaf-c")) == 1


def test_nothing_is_told_of_even_steps() -> None:
    assert diagnose_as_published(train(12, {("a", "b"): (1_000_000, 3_000_000)})).findings == ()


def test_it_answers_in_the_form_of_prisms_own_method() -> None:
    made = make_scenario(load_scenario("slow-gpu-64"), 0)
    ours, theirs = (
        diagnose(made.flows, made.topology).to_json(),
        diagnose_as_published(made.flows, made.topology).to_json(),
    )
    assert theirs.keys() == ours.keys()
    assert theirs["jobs"][0].keys() == ours["jobs"][0].keys()
    assert theirs["jobs"][0]["layout"].keys() == ours["jobs"][0]["layout"].keys()
    assert theirs["jobs"][0]["pairs"][0].keys() == ours["jobs"][0]["pairs"][0].keys()
    assert theirs["jobs"][0]["steps"][0].keys() == ours["jobs"][0]["steps"][0].keys()
    assert set(theirs["jobs"][0]["endpoints"]) == set(made.truth["jobs"][0]["endpoints"])


def test_its_timeline_is_a_spans_table() -> None:
    found = diagnose_as_published(train(6, {("a", "b"): (1_000_000, 3_000_000), ("b", "c"): (500_000,)}))
    spans = draw_published_timeline(found)
    assert spans.schema == SPANS.required
    assert (spans["end_ns"] >= spans["start_ns"]).all()
    assert set(spans["kind"].cast(pl.String)) == {"compute", "dp", "pp", "step"}


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_hardly_any_flows_give_hardly_any_jobs(rows: int) -> None:
    flows = train(1, {("a", "b"): (1,)}).head(rows)
    found = diagnose_as_published(flows)
    assert len(found.jobs) == (rows > 0) and found.findings == ()
    assert draw_published_timeline(found).schema == SPANS.required
    assert prepare_traffic(flows).messages.height == rows
