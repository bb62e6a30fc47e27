"""How a node's processors become workers."""

from __future__ import annotations

import pytest

from prism.evaluate.run.engines import EngineNode
from prism.evaluate.run.node_states import Layout


@pytest.mark.parametrize(
    ("layout", "cpus", "gpus", "there", "places"),
    [
        (Layout(gpus_per_worker=2), 16, 5, 0, [(0, 1), (2, 3)]),
        (Layout(), 16, 0, 0, []),  # other nodes have GPUs: this one scores
        (Layout(use_gpus=False), 7, 4, 0, [(), (), ()]),
        (Layout(use_gpus=False, cpu_workers=2), 16, 0, 0, [(), ()]),
        (Layout(max_workers=3), 16, 8, 2, [(0,)]),
        (Layout(max_workers=3), 16, 8, 5, []),
    ],
)
def test_workers_get_whole_sets_of_gpus_and_never_more_than_the_plan_allows(
    layout: Layout, cpus: int, gpus: int, there: int, places: list[tuple[int, ...]]
) -> None:
    assert layout.find_places(EngineNode(id="n", cpus=cpus, gpus=gpus), there) == places
