"""Ordinary runs that are killed once are never sent back for their loss; spikes that are there are seen."""

from __future__ import annotations

import pytest

from proving.benchmarks.recover_judgement import draw, judge


@pytest.mark.parametrize("number", range(8))
def test_a_loss_that_falls_again_after_a_kill_is_no_spike(number: int):
    assert judge(draw(number, spike=False)) == (0, 0)


def test_a_planted_spike_is_seen_in_shadow_and_nothing_is_done():
    found = [judge(draw(number, spike=True)) for number in range(8)]
    assert all(back == 0 for back, _ in found) and sum(seen > 0 for _, seen in found) >= 7
