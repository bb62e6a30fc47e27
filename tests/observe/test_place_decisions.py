"""Which place is slow, which stage is heavy and what is told first, piece by piece and by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from test_finding_decisions import (
    BEGIN,
    HOSTS,
    S,
    make_case,
    make_finding,
    make_messages,
    make_scene,
    make_stages,
    name,
)

from prism.observe.delays import ranking
from prism.observe.findings import network, stages, suspects
from prism.observe.findings.case import culprit
from prism.observe.findings.scoring import score_delays
from prism.observe.findings.suspects import rank_suspects, set_scene, weigh_rivals
from prism.observe.findings.transfers import SlowPair, Transfers, _at_one_time, find_slow_pairs
from prism.observe.findings.verdicts import Proposal, choose
from prism.observe.findings.windows import Window
from prism.observe.parallelism.stages import StageMap

STEPS = 6


LEAF = ("switch", "leaf-0")


def make_transfers(kinds: list[str] | None = None, units: list[int] | None = None, **tables: Any) -> Transfers:
    """Pairs 0>1, 1>2, 2>3, 3>0."""
    kinds, units = kinds or ["dp"] * HOSTS, units or [0] * HOSTS
    rows = pl.DataFrame(
        {"pair": range(HOSTS), "src": range(HOSTS), "dst": [1, 2, 3, 0], "kind": kinds, "unit": units},
        schema_overrides={"pair": pl.UInt32},
    )
    none = np.full((HOSTS, STEPS), np.nan)
    filled = {"against_like": none, "against_past": none, "extra_s": none, "lead_ns": none, "longest_ns": none}
    return Transfers(rows=rows, **{**filled, **tables}, paces=pl.DataFrame())


def slow_pair(pair: int, *, kind: str = "dp", early: bool = False, even: bool = False, extra_s: float = 1.0, sure: float = 20.0, first: int = 2) -> SlowPair:  # fmt: skip
    return SlowPair(
        pair=pair, src=pair, dst=(pair + 1) % HOSTS, kind=kind, window=Window(first, 5, 1.0, 1.0), sure=sure,
        extra_s=extra_s, steady=True, sound=True, early=early, even=even, slow_steps=(3, 4, 5),
    )  # fmt: skip


# -- units of hops


@pytest.mark.parametrize(
    ("slow", "early", "parted", "apart"),
    [
        ({0, 1, 2, 3, 4}, set(), [0, 0, 0, 0, 0, 1, 2], set()),  # all wait for one
        ({0, 1, 2, 3}, set(), [0, 0, 0, 0, 0, 1, 2], set()),  # four of five are as good as all
        ({0, 1, 2}, set(), [3, 4, 5, 6, 7, 1, 2], set()),  # each for itself
        ({0, 1, 2, 3, 4}, {3}, [3, 4, 5, 6, 7, 1, 2], {0, 1, 2, 3, 4}),  # one is done before: the others end last
        ({5}, {0}, [0, 0, 0, 0, 0, 1, 2], set()),  # another group's
    ],
)
def test_hops_of_a_group_share_one_fate_unless_some_are_slow_or_end_last(
    slow: set[int], early: set[int], parted: list[int], apart: set[int]
) -> None:
    assert suspects._part_units([0, 0, 0, 0, 0, 1, 2], slow, early) == (parted, apart)


def test_fresh_units_do_not_collide() -> None:
    parted, _ = suspects._part_units([4, 4, 4, 0], {0}, set())
    assert parted == [5, 6, 7, 0]


# -- quick rows


def test_rows_that_take_no_longer_than_ever_while_the_worst_is_slow_are_quick() -> None:
    like, past = np.full((HOSTS, STEPS), np.nan), np.full((HOSTS, STEPS), np.nan)
    like[0], like[1, 3:], like[2, 3:], past[3, 3:] = 1.0, [0.24] * 3, [0.25] * 3, [0.1] * 3
    like[3, 3:] = [0.0, 0.0, 0.9]
    transfers = make_transfers(units=[0, 1, 2, 3], against_like=like, against_past=past)
    assert suspects._find_quick(transfers, {0: slow_pair(0)}) == {1, 3}
    # Of another kind, what was sent in the first slow step may have passed before it began.
    like[1, 3:] = [9.0, 9.0, 0.0]
    other = make_transfers(["dp", "ep", "dp", "dp"], [0, 1, 2, 3], against_like=like, against_past=past)
    assert 1 not in suspects._find_quick(other, {0: slow_pair(0)})
    like[1, 3:] = [9.0, 0.0, 0.0]
    assert 1 in suspects._find_quick(other, {0: slow_pair(0)})
    like[1, 3:] = [9.0, 0.0, 0.3]
    same = make_transfers(units=[0, 1, 2, 3], against_like=like, against_past=past)
    assert 1 not in suspects._find_quick(same, {0: slow_pair(0)})
    like[1, 3:] = np.nan  # nothing is known
    assert suspects._find_quick(same, {0: slow_pair(0)}) == {3}


def test_the_worst_loses_most_and_then_is_surest() -> None:
    pairs = [slow_pair(0, extra_s=1.0, sure=9.0), slow_pair(1, extra_s=2.0, sure=1.0), slow_pair(2, extra_s=2.0)]
    assert suspects.find_worst(pairs).pair == 2


# -- the scene


def test_a_scene_holds_what_every_pair_touches() -> None:
    case = make_case([1.0] * STEPS)
    like = np.zeros((HOSTS, STEPS))
    like[0] = 1.0
    scene = set_scene(case, make_transfers(units=[0, 1, 2, 3], against_like=like), [slow_pair(0)], [slow_pair(0)], None)
    assert set(scene.slow) == {0} and scene.quick == {1, 2, 3}
    assert scene.touches[1] == {
        ("pair", "1>2"), ("out", "1"), ("in", "2"), ("nic", "1"), ("nic", "2"), ("host", "h1"), ("host", "h2"),
        ("switch", "leaf0"), ("switch", "leaf1"),
    }  # fmt: skip
    assert scene.moved == frozenset()
    both = set_scene(case, make_transfers(units=[0, 1, 2, 3], against_like=like), [slow_pair(0), slow_pair(1)], [slow_pair(0)], None)  # fmt: skip
    assert both.quick == {2, 3} and set(both.slow) == {0}


def test_messages_between_two_and_hops_that_end_apart_show_a_place() -> None:
    case = make_case([1.0] * STEPS)
    like = np.zeros((HOSTS, STEPS))
    # The ring of rows 0 and 1 ends apart, so the rows of the other one wait for it.
    rings = make_transfers(units=[0, 0, 1, 1], against_like=like)
    counted = [slow_pair(0), slow_pair(2), slow_pair(3)]
    scene = set_scene(case, rings, [*counted, slow_pair(1, early=True)], counted, None)
    assert set(scene.slow) == {0}
    mixed = make_transfers(["dp", "dp", "pp", "dp"], [0, 0, 1, 2], against_like=like)
    counted = [slow_pair(0), slow_pair(2, kind="pp"), slow_pair(3)]
    scene = set_scene(case, mixed, [*counted, slow_pair(1, early=True)], counted, None)
    assert set(scene.slow) == {0, 2}


def test_paths_are_those_while_it_was_slow_and_links_that_came_into_use_then_have_moved() -> None:
    case = make_case([1.0] * STEPS)
    slow = {0: slow_pair(0), 1: slow_pair(1)}  # from the third step on

    def route(pair: int, path: str, first_s: float, last_s: float) -> dict[str, Any]:
        return {
            "pair": pair,
            "path": path,
            "first_ns": BEGIN + round(first_s * S),
            "last_ns": BEGIN + round(last_s * S),
        }

    rows = [
        route(0, "a>b>c", 0.0, 1.0), route(0, "a>d>c", 1.0, 6.0),  # moved
        route(1, "a>e>c", 1.5, 6.0),  # was not there before
        route(2, "a>f>c", 0.0, 1.5), route(2, "a>g>c", 2.5, 6.0),  # moved, and is not slow
        route(3, "a>h>c", 0.0, 6.0),
    ]  # fmt: skip
    routes = pl.DataFrame(rows, schema_overrides={"pair": pl.UInt32})
    paths, moved = suspects._paths(routes, make_transfers(), slow, case)
    assert dict(paths) == {0: ["a>d>c"], 1: ["a>e>c"], 2: ["a>g>c"], 3: ["a>h>c"]}
    assert moved == {("link", "a>d"), ("link", "d>c")}
    assert suspects._paths(None, make_transfers(), slow, case) == ({}, frozenset())
    assert suspects._paths(routes.clear(), make_transfers(), slow, case) == ({}, frozenset())
    # A path that was known well before is none that came, though it is used again.
    known = pl.concat([routes, pl.DataFrame([route(0, "a>d>c", 0.5, 0.6)], schema=routes.schema)])
    assert suspects._paths(known, make_transfers(), slow, case)[1] == frozenset()


def test_a_path_touches_its_links_and_its_switches() -> None:
    found = suspects._touched(make_case([1.0] * STEPS), 0, 1, ["leaf0>spine2>leaf1"])
    assert {("link", "leaf0>spine2"), ("link", "spine2>leaf1"), ("switch", "spine2")} <= found
    bare = make_case([1.0] * STEPS)
    bare = replace(bare, endpoints=bare.endpoints.with_columns(switch=pl.lit(None, pl.String)))
    assert not [kind for kind, _ in suspects._touched(bare, 0, 1, ()) if kind == "switch"]


# -- ranks of suspects


def test_a_link_that_messages_were_moved_to_counts_once_more_for_each() -> None:
    scene = replace(make_scene([0, 1], [2, 3]), moved=frozenset([("switch", "leaf0"), ("nic", "1")]))
    scores = {r.suspect: r.score for r in rank_suspects(scene, scene.slow, ())}
    assert scores["nic", "1"] == 2 + 2
    assert scores["switch", "leaf0"] == max(2 - 2, 0) + 2


def test_equal_accounts_are_ordered_by_misses_then_loss_then_size() -> None:
    scene = make_scene([0], [])
    assert [r.suspect[0] for r in rank_suspects(scene, scene.slow, ())] == ["pair", "nic", "nic", "switch"]
    found = rank_suspects(scene, {0: replace(scene.slow[0], extra_s=0.1234567)}, ())
    assert {r.extra_s for r in found} == {0.123457}


def test_a_job_of_which_a_suspect_touches_less_than_half_does_not_speak_for_it() -> None:
    scene = make_scene([0], [])
    half, less = make_scene([1, 2], []), make_scene([1, 2, 3], [])
    of = {r.suspect: r.score for r in rank_suspects(scene, scene.slow, [half])}
    assert of["nic", "1"] == 1 + 1 and of["pair", "0>1"] == 1
    quick = {r.suspect: r.score for r in rank_suspects(scene, scene.slow, [make_scene([1], [0])])}
    assert quick["pair", "0>1"] == 1  # a pair is one job's own
    of = {r.suspect: r.score for r in rank_suspects(scene, scene.slow, [less])}
    assert of["nic", "1"] == 1


@pytest.mark.parametrize(
    ("touched", "elsewhere", "everywhere"),
    [
        ([{LEAF}, {LEAF}], None, True),
        ([{LEAF}, set()], None, False),  # something passes by
        ([{LEAF}, {LEAF}], {LEAF}, False),  # another tenant is slow there, too
        ([{LEAF}, {LEAF}], set(), True),
    ],
    ids=["all of it", "some of it", "with another job", "without another job"],
)
def test_a_switch_that_all_of_a_job_passes_is_not_told_from_the_job(
    touched: list[set[Any]], elsewhere: set[Any] | None, everywhere: bool
) -> None:
    scene: Any = SimpleNamespace(touches=touched, slow={0: None})
    others: Any = [] if elsewhere is None else [SimpleNamespace(touches=[elsewhere], slow={0: None})]
    assert network._is_everywhere(LEAF, scene, others) is everywhere


def test_hops_of_one_unit_count_once_with_the_most_that_one_loses() -> None:
    scene = make_scene([0, 1], [2])
    scene = replace(scene, unit=[0, 0, 0, 3], slow={0: scene.slow[0], 1: replace(scene.slow[1], extra_s=3.0)})
    nic = next(r for r in rank_suspects(scene, scene.slow, ()) if r.suspect == ("nic", "1"))
    assert (nic.score, nic.extra_s, nic.misses) == (1.0, 3.0, 0)
    leaf = next(r for r in rank_suspects(scene, scene.slow, ()) if r.suspect == ("switch", "leaf1"))
    assert leaf.misses == 0  # the quick row is of a slow unit


def test_suspects_that_touch_the_same_transfers_are_one_rival_named_by_the_best() -> None:
    def ranked(who: str, units: set[int], score: float) -> suspects.Ranked:
        return suspects.Ranked(("nic", who), frozenset(units), score, 0, 1.0)

    best, first, second = ranked("1", {1, 2}, 5.0), ranked("2", {3}, 4.0), ranked("3", {3}, 3.0)
    found = weigh_rivals([best, first, second], [best.suspect])
    assert list(found) == [first.suspect]
    assert found[first.suspect] == pytest.approx(np.exp(-1) / (1 + np.exp(-1)))


# -- heavy stages


def test_the_work_of_a_stage_is_forward_and_backward_and_of_the_last_its_turn() -> None:
    _, table = make_stages([0.03, 0.06, 0.05, 0.04])
    assert {s: round(w, 4) for s, (w, _) in stages._work_of_stages(table).items()} == {1: 0.06, 2: 0.05, 3: 0.04}


def test_the_costliest_of_two_heavy_stages_is_reported_and_the_other_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    case, table = make_stages([0.03, 0.03, 0.03, 0.03])
    monkeypatch.setattr(
        stages, "_work_of_stages", lambda t: {1: (0.05, 0.0), 2: (0.06, 0.0), 3: (0.03, 0.0), 4: (0.03, 0.0)}
    )
    monkeypatch.setattr(stages, "_is_slow_forward", lambda *args: True)
    asked = []

    def price(case: Any, table: Any, members: list[int], window: Window, *, by_design: bool) -> Any:
        asked.append((members, window.first, window.last, by_design))
        return SimpleNamespace(lost_s=window.mean, margin=0.8, words="")

    monkeypatch.setattr(stages, "price_slow_work", price)
    (told,) = stages.find_heavy_stages(case, table)
    assert asked == [([1], 0, 11, True), ([2], 0, 11, True)]
    assert told.finding.end_ns == case.steps["end_ns"][11]
    assert told.finding.culprit.id == "2" and told.finding.score == 0.8
    assert [(a.culprit.id, a.score) for a in told.seconds] == [("1", 0.4)]


@pytest.mark.parametrize(("known", "seen"), [(3, True), (2, False)])
def test_the_work_of_a_stage_is_known_from_three_steps_on(known: int, seen: bool) -> None:
    _, table = make_stages([0.03] * 4)
    forward = table.phases["forward"].copy()
    forward[1, known:] = np.nan
    assert (1 in stages._work_of_stages(replace(table, phases=table.phases | {"forward": forward}))) is seen


def test_the_noise_of_a_stage_shrinks_with_the_steps_seen() -> None:
    _, table = make_stages([0.03] * 4)
    scattered = table.phases["turn"] * np.tile([0.9, 1.0, 1.1], 4)
    noise = stages._work_of_stages(replace(table, phases=table.phases | {"turn": scattered}))[3][1]
    assert noise == pytest.approx(1.4826 * 0.1 / np.sqrt(12))
    assert 3 not in stages._work_of_stages(
        replace(table, phases={k: v for k, v in table.phases.items() if k != "turn"})
    )
    assert list(stages._work_of_stages(replace(table, phases={"turn": table.phases["turn"]}))) == [3]


def weights(sizes: list[int]) -> Any:
    """Gradients of each stage, in a job of four."""
    rows = pl.concat([make_messages([(h, BEGIN, BEGIN + S, 0)], size=size) for h, size in enumerate(sizes)])
    chain = tuple(range(HOSTS))
    return make_case([1.0] * 12, rows, stages=StageMap(stage={e: e for e in chain}, chains=(chain,), confidence=1.0))


def test_a_last_stage_may_be_heavier_by_what_it_has_more_of_weights() -> None:
    assert stages._expect_of_last(weights([1000, 10, 10, 12]), 3) == pytest.approx(0.2 + 1.5 * 0.2)
    lone = weights([9, 10, 99, 12])  # of the third rank no stage is known
    lone = replace(lone, stages=replace(lone.stages, stage={0: 0, 1: 1, 3: 3}))
    assert stages._expect_of_last(lone, 3) == pytest.approx(0.2 + 1.5 * 0.2)
    assert stages._expect_of_last(weights([9, 10, 10, 8]), 3) == pytest.approx(0.2)
    assert stages._expect_of_last(weights([9, 10, 10]), 3) == 0.6
    none = make_messages([(0, BEGIN, BEGIN + S, 0)], kind="tp")
    case = weights([9, 10, 10, 12])
    assert stages._expect_of_last(replace(case, messages=none), 3) == 0.6
    outside = replace(case, messages=case.messages.with_columns(step=pl.lit(-1, pl.Int32)))
    assert stages._expect_of_last(outside, 3) == 0.6


@pytest.mark.parametrize(("forward", "told"), [(1.15, True), (1.13, False)])
def test_a_heavy_stage_is_slow_forward_too(forward: float, told: bool) -> None:
    _, table = make_stages([0.03] * 4)
    values = table.phases["forward"].copy()
    values[2] *= forward
    changed = replace(table, phases=table.phases | {"forward": values})
    assert stages._is_slow_forward(changed, 2, 3) is told
    assert stages._is_slow_forward(changed, 3, 3) and not stages._is_slow_forward(changed, 1, 3)
    values[1] = np.nan  # nothing to compare with
    assert not stages._is_slow_forward(changed, 2, 3)


@pytest.mark.parametrize(("more", "told"), [(0.235, 1), (0.225, 0)])
def test_a_stage_is_heavier_by_a_fifth_and_three_times_its_noise(
    more: float, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, table = make_stages([0.03] * 4)
    monkeypatch.setattr(
        stages, "_work_of_stages", lambda t: {1: (0.03, 0.0), 2: (0.03 * (1 + more), 0.01), 3: (0.03, 0.0)}
    )
    monkeypatch.setattr(stages, "_is_slow_forward", lambda *args: True)
    assert len(stages.find_heavy_stages(case, table)) == told


def test_two_stages_have_nothing_to_compare_and_noise_hides_a_little_more() -> None:
    case, table = make_stages([0.03, 0.03, 0.045, 0.03])
    two = replace(table, stage=np.array([0, 1, 1, 1]))
    assert stages.find_heavy_stages(case, two) == []
    noisy = table.phases["forward"] * (1 + 0.9 * np.tile([-1, 0, 1], 4))
    assert stages.find_heavy_stages(case, replace(table, phases=table.phases | {"forward": noisy})) == []
    (told,) = stages.find_heavy_stages(case, table)
    assert told.by_design and told.seconds == ()
    assert told.gain == pytest.approx(12 * (0.5 / 0.002 - 3.0))
    assert "stage 2 works 45.0 ms on a micro-batch, the other stages 30.0 ms (50 % more)" in told.finding.evidence


# -- what is told


def test_where_transfers_are_not_seen_only_a_long_stretch_of_slow_steps_is_reported() -> None:
    lengths = [1.0] * 20 + [1.5] * 6 + [1.0] * 10
    assert name(ranking.find_all([replace(make_case(lengths), transfers_visible=False)])) == [("slow_step", "job-1")]
    two = make_case([1.0] * 20 + [1.5] * 2 + [1.0] * 10)  # twice as long as the longest step
    assert name(ranking.find_all([replace(two, transfers_visible=False)])) == [("slow_step", "job-1")]
    single = [1.0] * 20 + [3.5] + [1.0] * 10
    assert ranking.find_all([replace(make_case(single), transfers_visible=False)]) == ()


def propose(kind: Any, gain: float) -> Proposal:
    return Proposal(finding=replace(make_finding(0, 10), kind=kind), gain=gain)


def test_a_link_and_a_switch_that_gain_alike_are_each_one_of_two() -> None:
    link, switch = propose("slow_link", 60.0), propose("slow_switch", 60.0)
    switch = replace(switch, finding=replace(switch.finding, culprit=culprit("switch", "leaf0")))
    (found,) = choose(make_case([1.0] * 10), [link, switch])
    assert found.score == 0.5 and [a.score for a in found.alternatives] == [0.5]


# -- what one pair tells


@pytest.mark.parametrize(("first", "even", "told"), [(3, False, True), (4, False, False), (5, True, True)])
def test_one_slow_pair_is_enough_in_three_steps_or_at_one_pace_and_chance_in_two(
    first: int, even: bool, told: bool
) -> None:
    assert network._stands_alone(make_case([1.0] * 12), slow_pair(0, first=first, even=even)) is told


def test_a_link_gains_by_the_factor_that_it_slows_large_and_small_transfers_by() -> None:
    """Of a step's transfers over a NIC a few are long and many are short: all take eleven times as long."""
    like = np.zeros((HOSTS, STEPS))
    like[:2, 3:] = 10.0
    extra_s = np.zeros((HOSTS, STEPS))
    extra_s[0, 3:], extra_s[1, 3:] = 1.0, 0.01
    transfers = make_transfers(units=[0, 1, 2, 3], against_like=like, extra_s=extra_s)
    counted = [slow_pair(0), slow_pair(1)]
    (told,) = network.find_network(set_scene(make_case([1.0] * STEPS), transfers, counted, counted, None))
    assert told.gain > score_delays(extra_s, [0, 1], Window(2, 5, 1.0, 1.0), 1.0)


@pytest.mark.parametrize(("even", "told"), [(True, "10.0.1.1>leaf0"), (False, "10.0.0.1>leaf0")])
def test_of_two_slow_hops_of_a_collective_the_nic_at_both_is_slow_if_they_have_one_pace(even: bool, told: str) -> None:
    like = np.zeros((HOSTS, STEPS))
    like[:2, 3:] = 1.0
    hops = [slow_pair(0, even=even), slow_pair(1, even=even)]
    scene = set_scene(make_case([1.0] * STEPS), make_transfers(units=[0, 0, 1, 2], against_like=like), hops, hops, None)
    (found,) = network.find_network(scene)
    assert found.finding.culprit.id == told


@pytest.mark.parametrize("factor", [2.0, 40.0])
def test_a_nic_that_all_slow_pairs_touch_is_named_however_much_slower_one_of_them_is(factor: float) -> None:
    like = np.zeros((HOSTS, STEPS))
    like[0, 3:], like[1, 3:] = factor, 1.0
    hops = [replace(slow_pair(k), window=Window(3, 5, by, 1.0)) for k, by in ((0, factor), (1, 1.0))]
    scene = set_scene(make_case([1.0] * STEPS), make_transfers(units=[0, 1, 2, 3], against_like=like), hops, hops, None)
    assert [p.finding.culprit.id for p in network.find_network(scene)] == ["10.0.1.1>leaf0"]


@pytest.mark.parametrize(("noise", "felt"), [(0.0, True), (0.1, False)])
def test_what_comes_and_goes_is_felt_where_its_steps_are_longer_beyond_chance(noise: float, felt: bool) -> None:
    lengths = 1 + noise * np.random.default_rng(3).normal(size=40)
    lengths[[3, 4, 5]] += 0.02
    flapping = replace(slow_pair(0), steady=False)
    assert network._is_felt(make_case(lengths.tolist()), flapping) is felt


def test_which_of_the_suspects_is_slow_costs_its_choice() -> None:
    """A gain that any of so many suspects may have by chance is none."""
    scene = make_scene([0, 1], [2, 3])
    delays = np.zeros((HOSTS, 6))
    delays[:2] = 1.0
    told = network.find_network(replace(scene, slower=delays))[0].gain
    free = score_delays(delays, [0, 1], Window(0, 5, 1.0, 1.0), 1.0)
    assert 0 < told == pytest.approx(free - np.log(len(set().union(*scene.touches))))


def test_pairs_of_many_messages_without_a_pace_wait_for_one_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One link slows all that passes it; other groups of the same hosts wait for it once in a step."""
    monkeypatch.setattr(network, "_is_felt", lambda case, pair: True)
    case, transfers = make_case([1.0] * STEPS), make_transfers(units=[0, 1, 2, 3], against_like=np.ones((HOSTS, STEPS)))
    paced, waits = slow_pair(0, even=True), replace(slow_pair(1), unpaced=True)
    for slow, counted in (([paced, waits], [0]), ([slow_pair(0), waits], [0, 1]), ([paced, slow_pair(1)], [0, 1])):
        scene = network.find_scene(case, transfers, slow, None)
        assert scene is not None and sorted(scene.slow) == counted


def test_what_waits_for_a_slow_component_is_evidence_against_all_others_that_it_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hops into and out of one host have a pace; the third, which enters the same switch, has none."""
    monkeypatch.setattr(network, "_is_felt", lambda case, pair: True)
    transfers = make_transfers(units=[0, 1, 2, 3], against_like=np.ones((HOSTS, STEPS)))
    slow = [*(slow_pair(row, even=True) for row in (0, 1)), replace(slow_pair(3), unpaced=True)]
    scene = network.find_scene(make_case([1.0] * STEPS), transfers, slow, None)
    assert scene is not None
    misses = {r.suspect: r.misses for r in rank_suspects(scene, scene.slow, ())}
    assert (misses["nic", "1"], misses["nic", "0"], misses["switch", "leaf0"]) == (0, 1, 1)


@pytest.mark.parametrize(("back", "sound"), [((3, 4, 5), True), ((4, 5), True), ((0, 1, 5), False)])
def test_a_pair_of_stages_is_slow_where_the_way_back_is_in_most_of_the_same_steps(
    back: tuple[int, ...], sound: bool
) -> None:
    other = replace(slow_pair(1, kind="pp", first=0), slow_steps=back)
    assert _at_one_time(slow_pair(0, kind="pp"), other) is sound


@pytest.mark.parametrize(("units", "once", "found"), [
    ([0, 0, 1, 1], (0, 1), []),  # all hops of a ring
    ([0, 0, 1, 1], (0,), [0, 1]),  # more messages of its other hop are slow
    ([0, 0, 0, 1], (0, 1), [0, 1]),  # a third hop of the ring is quick
])  # fmt: skip
def test_where_one_message_in_a_step_is_slow_of_all_hops_of_a_collective_they_wait_for_a_rank(
    units: list[int], once: tuple[int, ...], found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_is_felt", lambda case, pair: True)
    transfers = make_transfers(units=units, against_like=np.ones((HOSTS, STEPS)))
    slow = [replace(slow_pair(row), unpaced=True, once=row in once) for row in range(2)]
    scene = network.find_scene(make_case([1.0] * STEPS), transfers, slow, None)
    assert ([] if scene is None else sorted(scene.slow)) == found


@pytest.mark.parametrize(("others", "found"), [(0.0, [0, 1]), (0.5, [])])
def test_a_pair_of_stages_that_is_always_slow_is_told_where_others_do_not_differ(
    others: float, found: list[int]
) -> None:
    """Pairs of stages may differ by design, in both directions: where half of them do, two and a half times is usual."""
    num = 12
    ends = [(2 * (r // 2) + r % 2, 2 * (r // 2) + 1 - r % 2) for r in range(num)]
    rows = pl.DataFrame(
        {"pair": range(num), "src": [s for s, _ in ends], "dst": [d for _, d in ends], "kind": ["pp"] * num,
         "unit": range(num)}, schema_overrides={"pair": pl.UInt32},
    )  # fmt: skip
    like = np.random.default_rng(1).normal(0.0, 0.001, (num, STEPS))
    like[:2] += 1.5
    like[6:] += others
    types = {"pair": pl.UInt32, "kind": pl.String, "stream": pl.UInt32, "step": pl.Int32, "pace": pl.Float64}
    tables = {"against_past": 0 * like, "extra_s": 0.1 * like, "lead_ns": 0 * like, "longest_ns": 1 + 0 * like}
    transfers = Transfers(rows=rows, against_like=like, **tables, paces=pl.DataFrame(schema=types))
    slow = find_slow_pairs(make_case([1.0] * STEPS), transfers)
    assert [p.pair for p in slow] == found and all(p.sound for p in slow)


def test_hosts_between_which_all_that_is_slow_passes_are_named_together() -> None:
    case = make_case([1.0] * STEPS)
    chosen = [slow_pair(0), replace(slow_pair(1), src=1, dst=0), slow_pair(2)]
    both = [("host", "h0"), ("host", "h1")]
    who, where = network._name_place(case, both[0], chosen, both)
    assert who.type == "group" and "between h0 and h1" in where
    assert network._name_place(case, both[0], chosen, both[:1])[0].id == "h0"
