"""How much each pair sends in all tells a pipeline from rings of gradients, where the graph leaves no other reading."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from prism.observe.parallelism.volumes import VolumeLayout, lay_out_volumes

PP, DP, TIE = 80_000, 30_000, 9_000


def look(
    pp: int, dp: int, tp: int, *, noise: float = 0.02, tied: bool = True, missed: tuple[tuple[int, int], ...] = ()
) -> VolumeLayout | None:
    """The layout of a job in which rank (stage, replica, inner) sends along stages, replicas and ties."""
    rng = np.random.default_rng(3)
    rank = {(s, r, i): (s * dp + r) * tp + i for s in range(pp) for r in range(dp) for i in range(tp)}
    sent: dict[tuple[int, int], float] = {}

    def add(a: int, b: int, size: int) -> None:
        sent[a, b] = sent.get((a, b), 0.0) + size * rng.normal(1, noise)

    for (s, r, i), own in rank.items():
        for near in ({s - 1, s + 1} & set(range(pp))) if pp > 1 else ():
            add(own, rank[near, r, i], PP)
        if dp > 1:
            add(own, rank[s, (r + 1) % dp, i], DP)
        if tied and pp > 2 and s in (0, pp - 1):
            add(own, rank[pp - 1 - s, r, i], TIE)
    pairs = pl.DataFrame(
        [(k, s, d, int(b)) for k, ((s, d), b) in enumerate((e, b) for e, b in sent.items() if e not in missed)],
        schema={"pair": pl.UInt32, "src": pl.UInt32, "dst": pl.UInt32, "bytes": pl.Int64},
        orient="row",
    )
    job = SimpleNamespace(endpoints=np.arange(len(rank)), pairs=np.arange(pairs.height))
    return lay_out_volumes(cast(Any, SimpleNamespace(pairs=pairs)), cast(Any, job))


@pytest.mark.parametrize("pp, dp, tp", [(4, 2, 8), (4, 4, 2), (8, 2, 1), (3, 1, 4)])
@pytest.mark.parametrize("tied", [True, False])
def test_a_pipeline_is_read_from_volumes_alone(pp: int, dp: int, tp: int, tied: bool) -> None:
    found = look(pp, dp, tp, tied=tied)
    assert found is not None
    assert (found.pp, found.dp, found.tp) == (pp, dp, tp)
    assert ("embedding" in found.kinds.values()) == tied


def test_two_stages_of_two_replicas_may_be_either_so_nothing_is_said() -> None:
    assert look(2, 2, 8) is None


def test_volumes_that_differ_by_chance_as_much_as_by_kind_say_nothing() -> None:
    assert look(4, 2, 8, noise=0.6) is None


def test_a_ring_of_which_one_pair_was_missed_is_no_pipeline() -> None:
    assert look(1, 6, 1, missed=((5, 0),)) is None
