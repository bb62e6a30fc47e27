"""Compute that runs beside a collective is lengthened, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from prism.simulate import Graph, GraphBuilder, LinearCosts
from prism.simulate.solving.overlap import _covered, solve_contended

MS = 1_000_000


def _graph(collective_ms: int, compute_ms: int, *, beside: bool) -> Graph:
    """One collective of two ranks and one kernel after it, at the same time on another stream or in one row."""
    builder = GraphBuilder("overlap")
    program = builder.program()
    program.step = 0
    program.collective("all_reduce", "world", 8, stream=1 if beside else 0, duration_ns=collective_ms * MS)
    program.compute("kernel", compute_ms * MS)
    builder.ranks(np.arange(2), np.zeros(2, int), np.zeros(2, int), np.arange(2))
    builder.groups("world", np.array([[0, 1]]), kind="dp")
    return builder.build()


@pytest.mark.parametrize(
    ("collective_ms", "compute_ms", "beside", "expected_ms"),
    [
        (100, 10, True, 100),  # all of the kernel lies beside the collective, which is longer still
        (5, 100, True, 101),  # 5 ms at 1/1.25 of the speed are 4 ms of work; 96 are left
        (100, 96, True, 116),  # 80 ms of its work are done in the 100 ms; 16 are left
        (50, 10, False, 60),
    ],
)
def test_a_kernel_beside_a_collective_takes_longer(
    collective_ms: int, compute_ms: int, beside: bool, expected_ms: float
) -> None:
    solution = solve_contended(_graph(collective_ms, compute_ms, beside=beside), LinearCosts(), slower=1.25)
    assert solution.total_ns / MS == pytest.approx(expected_ms, rel=0.01)


def test_a_factor_of_one_changes_nothing() -> None:
    graph = _graph(100, 96, beside=True)
    assert solve_contended(graph, LinearCosts(), slower=1.0).total_ns == 100 * MS


def test_overlaps_count_once_where_collectives_overlap() -> None:
    begins, ends = np.array([0, 5, 30]), np.array([10, 12, 40])
    start, end = np.array([-5, 11, 20, 0]), np.array([5, 35, 25, 50])
    assert _covered(begins, ends, start, end).tolist() == [5, 6, 0, 22]
