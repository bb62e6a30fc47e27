"""Verify that a graph would run to its end on a cluster."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from prism.simulate.graph import Graph
from prism.simulate.solving.solver import SolveConfig, solve


class _Free:
    """A cost model in which communication takes no time: enough to see who waits for whom."""

    def place(self, hosts: Sequence[int], locals_: Sequence[int]) -> Hashable:
        return 0

    def price(
        self,
        kinds: Sequence[str],
        sizes: npt.NDArray[np.int64],
        placement_index: npt.NDArray[np.int64],
        placements: Sequence[Hashable],
    ) -> npt.NDArray[np.int64]:
        return np.zeros(len(sizes), np.int64)


def verify(graph: Graph, *, eager_bytes: int = -1) -> None:
    """Raise GraphError, naming ranks, ops and source lines, when the graph would hang or contradicts itself.

    Messages up to `eager_bytes` do not wait for their receiver, as gloo's do not.
    """
    solve(graph, _Free(), SolveConfig(eager_bytes=eager_bytes))
