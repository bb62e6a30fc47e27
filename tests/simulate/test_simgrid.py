"""Chakra traces of a graph, run by SimGrid where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "proving" / "benchmarks" / "simulate_simgrid.py"


@pytest.fixture(scope="module")
def simgrid():
    spec = importlib.util.spec_from_file_location("simulate_simgrid", BENCHMARK)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_actions_made_from_chakra_hold_every_op_of_the_graph(simgrid, tmp_path) -> None:
    graph = simgrid.build_job(simgrid.Job(pp=2, dp=2, tp=2, microbatches=3))
    traces = simgrid.export_chakra(graph, tmp_path)
    groups = simgrid.json.loads((tmp_path / "comm_groups.json").read_text())
    actions = [list(simgrid.list_actions(rank, trace, groups)) for rank, trace in enumerate(traces)]
    words = [[line.split()[1] for line in rows] for rows in actions]
    assert all(row.count("compute") == 6 for row in words)
    assert sum(row.count("send") for row in words) == 24  # 4 pipelines x 3 micro-batches x both directions
    assert all(row.count("isend") == 2 * 6 + 2 for row in words)  # six sums of two ranks, then one more


def test_simgrid_takes_exactly_as_long_as_prism(simgrid, tmp_path) -> None:
    program = simgrid.find_replay()
    if program is None:
        pytest.skip("SimGrid (Debian's libsimgrid-dev) is not installed")
    ours, plain, default = simgrid.compare(simgrid.Job(pp=2, dp=2, tp=2, microbatches=3), tmp_path, program)
    assert plain == pytest.approx(ours, rel=1e-4)
    assert default > ours
