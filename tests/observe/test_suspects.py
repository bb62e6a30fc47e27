"""Which place accounts for slow transfers: by what it touches, by which hops end last, by their pace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from prism.observe.findings.collectives import number_units
from prism.observe.findings.suspects import Scene, Suspect, is_cleared
from prism.observe.findings.transfers import SlowPair, Transfers, compare_paces, find_last
from prism.observe.findings.windows import Window

RING = 4
STEPS = 6
SLOW = [3, 4, 5]


def make_ring(lead_ns: np.ndarray, paces: list[float]) -> Transfers:
    """A ring of four hops that is slow from the fourth step on; `paces` are those of each hop's slow messages."""
    rows = pl.DataFrame({"pair": range(RING), "src": range(RING), "dst": [1, 2, 3, 0], "kind": "dp", "unit": 0})
    told = [
        (pair, "dp", step, pace)
        for pair in range(RING)
        for step in range(STEPS)
        for pace in (paces if step in SLOW else [1.0])
    ]
    none = np.full((RING, STEPS), np.nan)
    return Transfers(
        rows=rows.with_columns(pl.col("pair").cast(pl.UInt32)),
        against_like=none,
        against_past=none,
        extra_s=none,
        lead_ns=lead_ns,
        longest_ns=np.full((RING, STEPS), 1e6),
        paces=pl.DataFrame(
            told, {"pair": pl.UInt32, "kind": pl.String, "step": pl.Int32, "pace": pl.Float64}, orient="row"
        ),
    )


def make_slow(pair: int) -> SlowPair:
    return SlowPair(
        pair=pair, src=pair, dst=(pair + 1) % RING, kind="dp", window=Window(3, 5, 3.0, 1.0), sure=50.0, extra_s=1.0,
        steady=True, sound=True, early=False, even=False, slow_steps=tuple(SLOW),
    )  # fmt: skip


def test_hops_that_end_last_are_told_although_an_exporters_clock_is_off() -> None:
    lead = np.zeros((RING, STEPS))
    lead[:, 3:] = np.array([[0], [0], [50_000], [90_000]])  # the first two hops hold up the others
    lead[0] += 200_000  # in every step alike: a clock, not a hop that ends early
    assert find_last(make_ring(lead, [1.0]), dict.fromkeys(range(RING), SLOW)) == {0, 1}


def test_hops_whose_ends_are_blurred_are_not_told_apart() -> None:
    noise = np.random.default_rng(0).normal(0, 100_000, (RING, 30))
    noise[:, SLOW] = np.array([[0], [0], [20_000], [30_000]])
    assert find_last(make_ring(noise, [1.0]), dict.fromkeys(range(RING), SLOW)) == set(range(RING))


def test_hops_of_short_collectives_and_steps_of_one_hop_alone_do_not_count() -> None:
    lead = np.zeros((RING, STEPS))
    lead[:, SLOW] = np.array([[0], [50_000], [90_000], [0]])
    ring = make_ring(lead, [1.0])
    ring.longest_ns[3] = 1e4  # another collective, which the long ones do not wait for
    steps = {0: SLOW, 1: SLOW, 2: SLOW, 3: [0, 1, 2, *SLOW]}
    assert find_last(ring, steps) == {0, 3}


def test_a_slow_link_has_one_pace_and_a_late_rank_has_none() -> None:
    slow = {0: make_slow(0)}
    lead = np.zeros((RING, STEPS))
    assert compare_paces(make_ring(lead, [4.0, 4.1, 4.2]), slow) == ({0}, set(), {0}, set())
    assert compare_paces(make_ring(lead, [2.0, 6.0, 12.0]), slow) == (set(), {0}, {0}, set())
    assert compare_paces(make_ring(lead, [4.0, 4.1]), slow) == (set(), set(), set(), set())  # six messages are few
    assert compare_paces(make_ring(lead, [4.0] * 3 + [1.0] * 4), slow) == (set(), set(), {0}, set())  # most are quick
    assert compare_paces(make_ring(lead, [40.0] + [1.0] * 6), slow) == (set(), set(), {0}, {0})  # one waits
    even = make_ring(lead, [1.0] * 7)  # no message takes longer
    assert compare_paces(even, slow) == (set(), set(), {0}, set())


def test_hops_of_one_collective_have_one_pace_or_none() -> None:
    ring = make_ring(np.zeros((RING, STEPS)), [2.0, 6.0, 12.0])
    steady = pl.when(pl.col("pair") == 0).then(pl.col("pace").clip(upper_bound=2.0)).otherwise("pace")
    ring = replace(ring, paces=ring.paces.with_columns(steady.alias("pace")))
    assert compare_paces(ring, {0: make_slow(0), 1: make_slow(1)}) == (set(), {0, 1}, {0, 1}, set())
    alone = replace(ring, rows=ring.rows.with_columns(unit=pl.col("pair").cast(pl.Int64)))
    assert compare_paces(alone, {0: make_slow(0), 1: make_slow(1)}) == ({0}, {1}, {0, 1}, set())


def _touch(src: int, dst: int, *switches: str) -> set[Suspect]:
    return {("out", str(src)), ("in", str(dst)), *(("switch", name) for name in switches)}


def test_a_pair_whose_nics_are_quick_otherwise_is_cleared_behind_one_switch() -> None:
    """Two rings against each other: what 0 sends to 3 is slow, what it sends to 1 is not, and 3 takes in from 2."""
    none: Any = None

    def clear(quick: set[int], *switches: str) -> bool:
        touches = [_touch(0, 3, *switches), _touch(0, 1, *switches), _touch(2, 3, *switches)]
        scene = Scene(none, {0: make_slow(0)}, frozenset(quick), touches, [0, 1, 2], frozenset(), np.zeros((3, 1)))
        return is_cleared(scene, 0)

    assert clear({1, 2}, "leaf")
    assert not clear({1}, "leaf")  # Nothing else that 3 takes in is quick.
    assert not clear({1, 2}, "leaf", "spine")  # The way between the switches may be slow.


def test_rails_of_one_exchange_of_tokens_hang_together() -> None:
    """NICs 0 and 1 of one host, 2 and 3 of the other: an exchange is over when its last rail is done."""
    rows = pl.DataFrame({"pair": [0, 1], "src": [0, 1], "dst": [2, 3], "kind": "ep"})
    host = np.array([0, 0, 1, 1])
    assert len(set(number_units(rows, host).tolist())) == 1
    assert len(set(number_units(rows.with_columns(kind=pl.lit("dp")), host).tolist())) == 2
