"""Layouts are ranked by how well they predict what was counted, and by nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.observe.parallelism.layout_model import (
    Degrees,
    RankCount,
    RankedLayout,
    Reading,
    confidence_of,
    list_layouts,
    rank_layouts,
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
