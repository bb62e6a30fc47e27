"""What-if changes: what each does to the run, how they are written, and what is said of a wrong word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import Mesh, build_mesh

from prism.errors import InputError
from prism.simulate import (
    GraphBuilder,
    LinearCosts,
    Plan,
    SolveConfig,
    apply_change,
    compare_plans,
    sample_steps,
    solve,
    verify,
)
from prism.simulate.what_if.changes import change_degree

COSTS = LinearCosts()
MESH = Mesh(dp=2, pp=2, tp=2, cp=2, microbatches=2, layers=2, batched=True, steps=2, seed=3)


def plan() -> Plan:
    return Plan(graph=build_mesh(MESH), config=SolveConfig(note_ops=True))


def total(changed: Plan, costs: LinearCosts = COSTS) -> int:
    return solve(changed.graph, costs, changed.config).total_ns


def test_a_slower_rank_lengthens_the_run_and_a_faster_one_does_not():
    assert total(apply_change(plan(), "rank 3 speed 0.5")) > total(plan())
    assert total(apply_change(plan(), "ranks 0-15 speed 2")) < total(plan())
    assert apply_change(plan(), "host 1 speed 0.5").config == apply_change(plan(), "ranks 4-7 speed 0.5").config
    assert total(apply_change(plan(), "rank 3 speed 0.5 from 100s to 200s")) == total(plan())


def test_twice_the_bandwidth_halves_the_size_part_of_a_transfer():
    builder = GraphBuilder("pair")
    program = builder.program()
    program.all_reduce("dp", 1000)
    program.all_reduce("tp", 1000)
    builder.ranks([0, 1], [0, 0], [0, 0], [0, 1])
    builder.group("dp", [0, 1])
    builder.group("tp", [0, 1])
    base = Plan(graph=builder.build(), config=SolveConfig())
    costs = LinearCosts(latency_ns=10, bytes_per_ns=1.0)
    assert total(base, costs) == 2 * (10 + 1000)
    assert total(apply_change(base, "dp bandwidth 2"), costs) == 10 + 500 + 10 + 1000
    assert total(apply_change(base, "all_reduce bandwidth 4"), costs) == 2 * (10 + 250)
    assert total(apply_change(base, "group tp-0 bandwidth 0.5"), costs) == 10 + 1000 + 2 * (10 + 1000)


def test_measured_transfers_follow_the_bandwidth_too():
    builder = GraphBuilder("measured")
    program = builder.program()
    program.collective("all_reduce", "dp", 8, duration_ns=500)
    builder.ranks([0, 1], [0, 0], [0, 0], [0, 1])
    builder.group("dp", [0, 1])
    base = Plan(graph=builder.build(), config=SolveConfig())
    wider = apply_change(base, "dp bandwidth 2")
    assert total(wider) == 250
    assert sample_steps(wider.graph, COSTS, wider.config, 1).tolist() == [[250]]


def test_ideal_ops_take_the_median_over_ranks():
    builder = GraphBuilder("uneven")
    for ns in (100, 200, 900):
        builder.program().compute("gemm", ns)
    builder.ranks([0, 1, 2], [0, 1, 2], [0] * 3, [0, 1, 2])
    base = Plan(graph=builder.build(), config=SolveConfig())
    assert (total(base), total(apply_change(base, "gemm ideal"))) == (900, 200)
    assert total(apply_change(base, "compute ideal")) == 200


def test_overlap_off_is_never_faster_and_ends_with_one_stream():
    without = apply_change(plan(), "overlap off")
    assert without.graph.ops["stream"].n_unique() == 1
    assert total(without) >= total(plan())


def test_placement_decides_what_crosses_hosts():
    packed = apply_change(plan(), "placement packed 8")
    strided = apply_change(plan(), "placement strided 8")
    assert packed.graph.ranks["host"].to_list() == [0] * 8 + [1] * 8
    assert strided.graph.ranks["host"].to_list() == [0, 1] * 8
    assert total(strided) > total(packed)
    swapped = apply_change(packed, "swap rank 0 rank 15")
    assert swapped.graph.ranks["host"].to_list() == [1] + [0] * 7 + [1] * 7 + [0]


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_another_degree_gives_the_same_job_as_building_it_so(degree: int):
    base = Plan(graph=build_mesh(Mesh(2, 2, 2, 2, 2, 1, True, 1, 3), gpus_per_host=1), config=SolveConfig())
    changed = apply_change(base, f"dp degree {degree}")
    built = build_mesh(Mesh(degree, 2, 2, 2, 2, 1, True, 1, 3), gpus_per_host=1)
    verify(changed.graph)
    assert changed.graph.num_ranks == built.num_ranks
    # Every rank sits on a host of its own, so that only sizes of groups tell the two apart.
    assert total(changed) == solve(built, COSTS).total_ns


def test_the_same_degree_changes_nothing():
    base = plan()
    again = change_degree(base, "dp", 2)
    assert solve(again.graph, COSTS).total_ns == total(base)
    assert again.graph.groups["group"].n_unique() == base.graph.groups["group"].n_unique()


def test_a_comparison_says_where_the_time_went():
    changed = compare_plans(plan(), apply_change(plan(), "tp bandwidth 0.25"), COSTS)
    moved = changed.moved()
    assert moved["kind"][0] == "all_reduce"
    assert moved["change_ns"].sum() == changed.after.solution.total_ns - changed.before.solution.total_ns
    assert changed.speedup < 1
    document = changed.to_json()
    assert document["after"]["critical_path"]["kind"][0]["share"] > 0
    assert set(document["before"]["usage"]) >= {"bubble", "exposed", "overlapped"}


WRONG = {
    "rank 3 sped 0.5": "did you mean 'speed'",
    "all_reduc bandwidth 2": "'all_reduc' is unknown; did you mean 'all_reduce'",
    "group dp-99 bandwidth 2": "did you mean 'dp-",
    "atention ideal": "did you mean 'attention'",
    "rank x speed 0.5": "'x' is not a whole number",
    "rank 3 speed fast": "'fast' is not a number",
    "rank 3 speed nan": "'nan' is not a number",
    "rank 3 speed 0.5 from 2": "has no unit",
    "rank 3 speed 0.5 since 2s": "is not a window",
    "rank 3 speed -1": "from 0 up",
    "host 99 speed 0.5": "no host 99; the last one is 3",
    "placement pakced 8": "did you mean 'packed'",
    "placement packed 0": "0 GPUs per host",
    "swap rank 3 rank 99": "no rank 99 to swap",
    "dp degree 0": "expected 1 or more",
    "pp bandwidth 0": "expected a number above 0",
    "": "it can be one of",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items())
def test_a_wrong_word_is_answered_with_the_nearest_right_one(text: str, words: str):
    with pytest.raises(InputError) as error:
        apply_change(plan(), text)
    assert words in str(error.value)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "rank",
                "host",
                "dp",
                "speed",
                "bandwidth",
                "0.5",
                "3",
                "-1",
                "1e400",
                "from",
                "to",
                "2s",
                "ideal",
                "degree",
                "swap",
                "off",
                "é",
            ]
        ),
        max_size=6,
    )
)
def test_any_words_give_a_plan_or_an_input_error(words: list[str]):
    try:
        changed = apply_change(SMALL, " ".join(words))
    except InputError as error:
        assert str(error)
    else:
        assert isinstance(changed, Plan)


SMALL = Plan(graph=build_mesh(Mesh(2, 1, 1, 1, 1, 1, False, 1, 0)), config=SolveConfig())


def test_degree_of_a_slot_that_does_not_split_the_job_is_refused():
    builder = GraphBuilder("odd")
    program = builder.program()
    program.all_reduce("dp", 8)
    builder.ranks(np.arange(3), [0] * 3, [0] * 3, np.arange(3))
    builder.group("dp", [0, 1])
    builder.group("dp", [2])
    with pytest.raises(InputError, match="does not split all ranks into equal groups"):
        apply_change(Plan(graph=builder.build(), config=SolveConfig()), "dp degree 4")
    torn = build_mesh(Mesh(2, 1, 2, 1, 1, 1, False, 1, 0))
    extra = pl.DataFrame({"group": [99, 99], "slot": "corner", "kind": "unknown", "rank": [0, 3], "position": [0, 1]})
    joined = replace(torn, groups=pl.concat([torn.groups, extra.cast(dict(torn.groups.schema))]))
    with pytest.raises(InputError, match="'corner' span some replicas of 'dp', not all"):
        apply_change(Plan(graph=joined, config=SolveConfig()), "dp degree 4")


def _summed_over_the_world(dp: int) -> Plan:
    builder = GraphBuilder("job")
    program = builder.program()
    program.compute("work", 1000)
    program.all_reduce("dp", 1000)
    program.all_reduce("world", 8)
    ranks = list(range(2 * dp))
    builder.ranks(ranks, [0] * len(ranks), [r // 2 for r in ranks], [r % 2 for r in ranks])
    for place in range(2):
        builder.group("dp", ranks[place::2])
    builder.group("world", ranks)
    return Plan(graph=builder.build(), config=SolveConfig())


@pytest.mark.parametrize("degree", [1, 2, 8])
def test_a_group_of_all_ranks_grows_with_the_degree(degree: int):
    changed = apply_change(_summed_over_the_world(4), f"dp degree {degree}").graph
    built = _summed_over_the_world(degree).graph
    for slot in ("dp", "world"):
        sizes, expected = (
            sorted(g.groups.filter(pl.col("slot") == slot).group_by("group").len()["len"].to_list())
            for g in (changed, built)
        )
        assert sizes == expected
    verify(changed)


@pytest.mark.parametrize("change", ["tp degree 4", "pp degree 2", "microbatches 16"])
def test_what_a_graph_does_not_hold_is_refused_with_the_command_to_ask(change: str):
    with pytest.raises(InputError, match="ask `prism estimate"):
        apply_change(plan(), change)


def test_another_cluster_prices_the_same_graph():
    moved = apply_change(plan(), "cluster dgx-b200")
    assert moved.cluster is not None and moved.cluster.gpu == "B200"
    assert moved.graph is not None and compare_plans(plan(), moved, COSTS).after.solution.total_ns > 0
    with pytest.raises(InputError, match="presets: .*gb200-nvl72"):
        apply_change(plan(), "cluster GB200")


def test_another_gpu_shortens_compute_by_the_ratio_of_peaks():
    base = replace(_summed_over_the_world(2), gpu="H100")
    changed = apply_change(base, "gpu B200").graph.ops.filter(pl.col("kind") == "compute")
    assert changed["duration_ns"].to_list() == [round(1000 * 989 / 2250)]
    with pytest.raises(InputError, match="the GPU 'B2000' is not known; known are A100"):
        apply_change(base, "gpu B2000")
