"""Two local Ray nodes: trials on both, and one of them lost midway."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prism.evaluate.adapters import BUILTIN_DATASETS
from prism.evaluate.engines import LocalEngine
from prism.evaluate.evaluation import EvaluateConfig, Evaluation, evaluate
from prism.evaluate.models.tiny import write_tiny
from prism.evaluate.plan_file import parse_plan

pytestmark = [pytest.mark.slow, pytest.mark.ray]

PLAN = """
checkpoints: step-*
datasets: [{name: arithmetic, samples: 600}, {name: text, samples: 300}, {name: order, samples: 400}]
hardware: {device: cpu, workers: 2, score_cpus: 1}
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head and a second node, both processes of this test, ended by it."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 2, "object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    made.add_node(**size)
    yield made
    made.shutdown()


def run(folder: Path, engine: Any, **more: Any) -> Evaluation:
    plan = parse_plan(PLAN, "plan", folder, BUILTIN_DATASETS)
    return evaluate(plan, engine, EvaluateConfig(folder=folder / "run", **more))


def test_two_nodes_share_the_work_and_one_that_is_lost_is_made_up_for(cluster: Any, tmp_path: Path) -> None:
    from prism.evaluate.engines.ray_engine import RayEngine

    for place in ("a", "b"):
        for step in (1, 2):
            write_tiny(tmp_path / place / f"step-{step}", step)
    lost: list[float] = []

    def lose_second_node(document: dict[str, Any]) -> None:
        """When both nodes have inferred, the second goes without a word."""
        path = tmp_path / "a" / "run" / "trials.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        if not lost and len({line["node"] for line in lines if line["phase"] == "infer"}) == 2:
            lost.append(time.monotonic())
            cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)

    shared = run(tmp_path / "a", lambda: RayEngine(cluster.address, 4), show=lose_second_node)
    assert lost and shared.found.failures == []
    alone = run(tmp_path / "b", LocalEngine)
    assert shared.found.metrics == alone.found.metrics and len(shared.found.metrics) == 6
