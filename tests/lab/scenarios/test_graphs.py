"""The graphs that a scenario leaves for `prism simulate`."""

from __future__ import annotations

import json

import typer
from small_scenarios import small
from typer.testing import CliRunner

from prism.cli.simulate import simulate_graph
from prism.lab.scenarios import make_scenario, write_graphs
from prism.simulate import load_cluster, load_graph

app = typer.Typer()
app.command()(simulate_graph)


def test_a_scenario_leaves_a_graph_that_simulate_solves(tmp_path) -> None:
    made = make_scenario(small(duration=4.0), seed=3)
    (folder,) = write_graphs(made, tmp_path)
    assert load_graph(folder).num_ranks == made.truth["jobs"][0]["gpus"]
    assert load_cluster(tmp_path / "cluster.yaml") == made.cluster
    result = CliRunner().invoke(app, [str(folder), "--cluster", str(tmp_path / "cluster.yaml"), "--json"])
    assert result.exit_code == 0, result.output
    solved = json.loads(result.stdout)["mean_step_ns"]
    steps = [s["end_ns"] - s["start_ns"] for s in made.truth["jobs"][0]["steps"]]
    typical = sorted(steps)[len(steps) // 2]
    assert abs(solved / typical - 1) < 0.1  # the scenario's own steps vary by chance; the graph is the plan of one
