"""Layouts are ranked by how well they predict what was counted, and by nothing else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.observe.parallelism.layout_model import (
    Degrees,
    LayoutConfig,
    RankCount,
    RankedLayout,
    Reading,
    _count_degrees,
    _log_prior,
    _score_layouts,
    confidence_of,
    list_layouts,
    rank_layouts,
    stages_on_host,
)


def read(**counts: int) -> list[Reading]:
    """Readings that count degrees themselves."""
    return [
        Reading(value=value, reliability=0.95, predict=lambda d, name=name: (getattr(d, name),))  # type: ignore[misc]
        for name, value in counts.items()
    ]


def rank(ranks: int, readings: list[Reading]) -> list[RankedLayout]:
    """Layouts of one count of ranks, eight on a host."""
    return rank_layouts([RankCount(ranks=ranks, per_host=8, readings=readings)])


@given(st.sampled_from([8, 16, 24, 32, 64]), st.data())
def test_counts_that_a_layout_predicts_lead_back_to_it(ranks: int, data: st.DataObject) -> None:
    inside = [d for d in list_layouts(ranks) if d.tp in (1, 2, 4, 8)]
    truth: Degrees = data.draw(st.sampled_from(inside))
    found = rank(ranks, read(pp=truth.pp, tp=truth.tp, cp=truth.cp, ep=truth.ep))
    assert found[0].degrees == truth


@pytest.mark.parametrize("counts", [{"pp": 3, "tp": 1}, {"pp": 4, "tp": 5}, {"pp": 5, "tp": 3}])
def test_counts_that_fit_no_layout_lead_to_one_that_the_ranks_allow(counts: dict[str, int]) -> None:
    best = rank(16, read(**counts))[0].degrees
    assert best.dp * best.pp * best.tp * best.cp == 16


def test_confidence_is_the_margin_to_the_next_layout() -> None:
    clear = rank(32, read(pp=4, tp=8, cp=1, ep=1) * 2)
    doubtful = rank(32, read(pp=4, tp=8, cp=1, ep=1) + read(tp=1))
    assert clear[0].probability > 0.9 > doubtful[0].probability
    assert {r.degrees.tp for r in doubtful[:2]} == {1, 8}
    assert confidence_of(doubtful, "pp") > confidence_of(doubtful, "tp")


def test_counts_of_ranks_that_nothing_tells_apart_are_both_said() -> None:
    counts = [RankCount(ranks=n, per_host=8, readings=read(pp=1, tp=1, cp=1, ep=1) * 2) for n in (32, 16)]
    first, second = rank_layouts(counts)[:2]
    assert (first.degrees.dp, second.degrees.dp) == (32, 16)
    assert first.probability == pytest.approx(second.probability)
    assert first.probability < 0.5


def test_of_counts_of_ranks_the_likelier_one_is_said_first_as_surely_as_it_is_likely() -> None:
    counts = [
        RankCount(ranks=n, per_host=8, readings=read(pp=1, tp=1, cp=1, ep=1) * 2, likely=likely)
        for n, likely in ((16, 0.2), (32, 0.8))
    ]
    first, second = rank_layouts(counts)[:2]
    assert (first.degrees.dp, second.degrees.dp) == (32, 16)
    assert first.probability / second.probability == pytest.approx(4.0)
    assert first.probability == pytest.approx(0.8 * 0.97, abs=0.01)


def make_degrees(**given: int) -> Degrees:
    return Degrees(**{"dp": 1, "pp": 1, "tp": 1, "cp": 1, "ep": 1, **given})


@pytest.mark.parametrize(
    ("degrees", "ranks", "shares"),
    [
        (make_degrees(dp=8), 8, (0.99, 0.8, 0.8, 0.7)),
        (make_degrees(dp=4, tp=2), 8, (0.5, 0.8, 0.2 / 3, 0.7)),  # 2, 4 or 8 ranks; half of these split sequences
        (make_degrees(dp=4, cp=2), 8, (0.01 / 3, 0.8, 0.8, 0.7)),  # sequences, but no tensors
        (make_degrees(dp=8, ep=8), 8, (0.99, 0.2 / 3, 0.8, 0.7)),
        (make_degrees(dp=2, pp=2, tp=2), 8, (0.8, 0.8, 0.5 / 3, 0.3)),  # two stages on a host
        (make_degrees(dp=4, pp=2, tp=2), 16, (0.8, 0.8, 0.5 / 3, 0.7)),  # a host for each
        (make_degrees(dp=8, tp=3), 24, (0.5, 0.8, 0.2 / 3, 0.7, 0.02)),  # no power of two
        (make_degrees(dp=2, tp=16), 32, (0.5, 0.8, 0.2 / 3, 0.7, 0.02)),  # more than a host holds
    ],
    ids=str,
)
def test_a_layout_is_as_common_as_what_it_splits(degrees: Degrees, ranks: int, shares: tuple[float, ...]) -> None:
    assert _log_prior(degrees, ranks, 8, LayoutConfig()) == pytest.approx(sum(math.log(share) for share in shares))


@pytest.mark.parametrize(
    ("value", "predicted", "merged", "expected"),
    [
        (4, (2, 4), False, math.log(0.9)),
        (4, (2,), True, math.log(0.1)),
        (4, (1, 2), False, math.log(0.1) - math.log(2)),  # the nearest of what is predicted
        (0, (2,), False, math.log(0.1) - math.log(4)),  # none counts as a half
        (2, (0,), False, math.log(0.1) - math.log(4)),
        (4, (), False, math.log(0.1) - 1.0),
    ],
)
def test_a_count_is_the_less_likely_the_further_off_it_is(
    value: int, predicted: tuple[int, ...], merged: bool, expected: float
) -> None:
    reading = Reading(value=value, reliability=0.9, predict=lambda degrees: predicted, merged=merged)
    assert reading.log_likelihood(make_degrees()) == pytest.approx(expected)


def test_stages_share_a_host_where_one_holds_several() -> None:
    assert [stages_on_host(make_degrees(pp=pp), 16, 8)[0] for pp in (1, 2, 4, 8)] == [1, 1, 2, 4]
    assert [stages_on_host(make_degrees(pp=pp, tp=4), 64, 8)[1] for pp in (1, 2, 4, 8)] == [1, 2, 2, 2]


def test_layouts_far_less_likely_than_the_best_are_left_out() -> None:
    found = rank(16, read(pp=4, cp=1, ep=1))
    behind = [math.log(r.probability / found[0].probability) / LayoutConfig().sharpness for r in found]
    assert len(found) > 1 and all(b >= math.log(0.05) - 1e-9 for b in behind)
    assert sum(r.probability for r in found) < 0.97


def test_what_no_count_tells_is_said_as_surely_as_it_is_common() -> None:
    in_host = Reading(value=1, reliability=0.95, predict=lambda d: (int(d.cp < 8),))
    bare, *others = rank(16, [*read(pp=1, tp=2, ep=1), in_host])
    split = sum(other.probability for other in others if other.degrees.cp > 1)
    assert (bare.degrees.dp, bare.degrees.tp) == (8, 2)
    assert split == pytest.approx(
        0.5 * bare.probability, rel=0.1
    )  # Of tensors that are split half come with sequences.


@pytest.mark.parametrize(("ranks", "degrees"), [(1, 1), (2, 1), (7, 1), (8, 3), (12, 5)])
def test_degrees_are_counted_by_the_divisors_of_the_ranks(ranks: int, degrees: int) -> None:
    assert _count_degrees(ranks) == degrees


def test_every_layout_of_a_number_of_ranks_is_listed_once() -> None:
    for ranks in (1, 6, 12):
        found = list(list_layouts(ranks))
        every = {
            (dp, pp, tp, cp, ep)
            for pp in range(1, ranks + 1) for tp in range(1, ranks + 1) for cp in range(1, ranks + 1)
            for dp in range(1, ranks + 1) for ep in range(1, ranks + 1)
            if dp * pp * tp * cp == ranks and (dp * cp) % ep == 0 and ranks % ep == 0
        }  # fmt: skip
        assert len(found) == len(every) and {(d.dp, d.pp, d.tp, d.cp, d.ep) for d in found} == every


def degrees(**values: int) -> Degrees:
    return Degrees(**{"dp": 1, "pp": 1, "tp": 1, "cp": 1, "ep": 1, **values})


@pytest.mark.parametrize(
    ("layout", "factors"),
    [
        ({"dp": 16}, (0.99, 0.8, 0.8, 0.7)),
        ({"dp": 4, "pp": 4}, (0.99, 0.8, 0.5, 0.3)),  # two stages on each host of eight
        ({"dp": 8, "pp": 2}, (0.99, 0.8, 0.5, 0.7)),
        ({"dp": 4, "pp": 2, "tp": 2}, (0.8, 0.8, 0.5 / 3, 0.7)),
        ({"dp": 8, "tp": 2}, (0.5, 0.8, 0.2 / 3, 0.7)),
        ({"dp": 8, "cp": 2}, (0.01 / 4, 0.8, 0.8, 0.7)),
        ({"dp": 8, "pp": 2, "ep": 2}, (0.99, 0.2 / 4, 0.8, 0.7)),
        ({"tp": 16}, (0.5, 0.8, 0.2 / 3, 0.02, 0.7)),  # over hosts
    ],
)
def test_how_common_a_layout_is(layout: dict[str, int], factors: tuple[float, ...]) -> None:
    assert _log_prior(degrees(**layout), 16, 8, LayoutConfig()) == pytest.approx(sum(map(math.log, factors)))


def test_tensors_split_over_a_number_that_is_no_power_of_two_are_rare() -> None:
    rare = _log_prior(degrees(dp=4, tp=3), 12, 8, LayoutConfig())
    assert rare == pytest.approx(sum(map(math.log, (0.5, 0.8, 0.2 / 3, 0.02, 0.7))))


def test_layouts_that_change_no_digit_are_left_out_and_counts_are_as_likely_as_each_other() -> None:
    stages = Reading(value=4, reliability=0.98, predict=lambda d: (d.pp,))
    sharp = Reading(value=2, reliability=1 - 1e-9, predict=lambda d: (d.tp,), merged=True)
    count = RankCount(ranks=16, per_host=8, readings=[stages, sharp])
    kept = _score_layouts(count, LayoutConfig())
    assert {d.tp for _, d in kept} == {2}
    everything = _score_layouts(RankCount(ranks=16, per_host=8, readings=[stages]), LayoutConfig())
    assert {d.tp for _, d in everything} > {1, 2, 4}
    first, second = (RankCount(ranks=r, per_host=8, readings=[]) for r in (16, 32))
    found = rank_layouts([first, second])
    tops = [r for r in found if r.probability == pytest.approx(found[0].probability)]
    assert [math.prod((r.degrees.dp, r.degrees.pp, r.degrees.tp, r.degrees.cp)) for r in tops[:2]] == [16, 32]


def test_a_layout_is_as_likely_as_the_cube_of_its_likelihood_and_no_more_common_for_it() -> None:
    reading = Reading(value=4, reliability=0.6, predict=lambda d: (d.pp,))
    config = LayoutConfig()
    first, *others = rank_layouts([RankCount(ranks=16, per_host=8, readings=[reading])])
    for other in others:
        common = _log_prior(first.degrees, 16, 8, config) - _log_prior(other.degrees, 16, 8, config)
        likely = reading.log_likelihood(first.degrees) - reading.log_likelihood(other.degrees)
        assert math.log(first.probability / other.probability) == pytest.approx(common + 3 * likely)


def test_the_confidence_in_a_degree_is_that_of_all_layouts_that_have_it() -> None:
    found = rank_layouts([RankCount(ranks=16, per_host=8, readings=[])])
    best = found[0].degrees
    assert confidence_of(found, "cp") == pytest.approx(sum(r.probability for r in found if r.degrees.cp == best.cp))
    assert confidence_of(found, "cp") > confidence_of(found, "dp")
