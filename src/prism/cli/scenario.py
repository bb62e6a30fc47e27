"""`prism scenario`: a cluster with known truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import JsonFlag, OutputDir, examples
from prism.cli.terminal import note, show, show_json, table

if TYPE_CHECKING:
    from prism.lab.scenarios import ScenarioRun

EPILOG = examples(
    "prism scenario --list",
    "prism scenario dense-3d-64 --output /tmp/dense",
    "prism scenario random --seed 7 --output /tmp/drawn",
    "prism scenario my-cluster.yaml --output /tmp/mine --seed 7",
    "prism scenario dense-3d-64 --output /tmp/dense --graph",
    "prism simulate /tmp/dense/graphs/job-1 --cluster /tmp/dense/cluster.yaml",
)


def run_scenario(
    scenario: Annotated[str | None, typer.Argument(help="A named scenario, a YAML file, or 'random'.")] = None,
    output: OutputDir = None,
    seed: Annotated[
        int, typer.Option(help="Seed of all random choices; the same seed gives the same files.", min=0)
    ] = 0,
    graph: Annotated[
        bool,
        typer.Option("--graph", help="Also write each job's step as a graph, and the cluster, for prism simulate."),
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the named scenarios and stop.")] = False,
    json: JsonFlag = False,
) -> None:
    """Write the flows, topology, timeline and truth of a training cluster."""
    from prism.lab.scenarios import load_scenario, make_scenario, random_scenario, write_graphs, write_scenario

    if list_all:
        _list_scenarios(json)
        return
    if scenario is None:
        raise typer.BadParameter("name a scenario or a YAML file; list them with --list")
    if output is None:
        raise typer.BadParameter("no output folder; give --output DIR")
    made = make_scenario(random_scenario(seed) if scenario == "random" else load_scenario(scenario), seed)
    write_scenario(made, output)
    graphs = write_graphs(made, output) if graph else []
    if json:
        written = {"graphs": [str(path) for path in graphs], "cluster": str(output / "cluster.yaml")} if graph else {}
        show_json({"schema": "prism.scenario/1", "output": str(output), **_summary(made), **written})
        return
    _show(made)
    note(f"wrote flows.parquet, topology.csv, spans.parquet and truth.json to {output}")
    if graph:
        note(f"solve a job with: prism simulate {graphs[0]} --cluster {output / 'cluster.yaml'}")


def _summary(made: ScenarioRun) -> dict[str, object]:
    return {
        "scenario": made.truth["scenario"],
        "seed": made.truth["seed"],
        "flows": made.flows.height,
        "spans": made.spans.height,
        "endpoints": made.topology.height,
        "jobs": len(made.truth["jobs"]),
        "gpus": sum(job["gpus"] for job in made.truth["jobs"]),
        "faults": made.truth["faults"],
    }


def _show(made: ScenarioRun) -> None:
    rows = []
    for job in made.truth["jobs"]:
        steps = job["steps"]
        mean = (steps[-1]["end_ns"] - steps[0]["start_ns"]) / len(steps) / 1e9 if steps else 0.0
        degrees = " ".join(f"{d}{job['layout'][d]}" for d in ("dp", "pp", "tp", "cp", "ep") if job["layout"][d] > 1)
        rows.append((job["id"], job["gpus"], degrees, job["layout"]["sharding"], len(steps), f"{mean:.3f}"))
    show(
        table(f"{made.flows.height:,} flows", ("job", ">GPUs", "layout", "sharding", ">steps", ">seconds a step"), rows)
    )
    for fault in made.truth["faults"]:
        note(f"planted: {fault['cause']} at {fault['culprit']['id']}")


def _list_scenarios(json: bool) -> None:
    from prism.lab.scenarios import load_scenario, scenario_names

    found = [load_scenario(name) for name in scenario_names()]
    if json:
        listed = [{"name": s.name, "gpus": s.num_gpus, "jobs": len(s.jobs), "about": s.about} for s in found]
        show_json({"schema": "prism.scenarios/1", "scenarios": listed})
        return
    rows: list[tuple[object, ...]] = [(s.name, s.num_gpus, len(s.jobs), s.about) for s in found]
    rows.append(("random", "16-1024", "1-10", "Drawn anew for every --seed: any layout, fault and measurement."))
    show(table(None, ("scenario", ">GPUs", ">jobs", "what it is"), rows))
