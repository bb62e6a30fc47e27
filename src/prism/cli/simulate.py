"""`prism simulate`: solve a saved graph, and ask what would change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism.cli.options import JsonFlag, OutputDir, examples
from prism.cli.terminal import note, show, show_json, table

if TYPE_CHECKING:
    from prism.simulate.assessment import Assessment
    from prism.simulate.what_if.comparison import Comparison, Outcome

EPILOG = examples(
    "prism simulate graph/",
    "prism simulate graph/ --cluster dgx-h100 --output solved/",
    'prism simulate graph/ --what-if "rank 12 speed 0.8" --what-if "dp bandwidth 2"',
    "prism simulate graph/ --jitter 0.05 --draws 100 --json",
)


def simulate_graph(
    graph: Annotated[Path, typer.Argument(help="A folder that holds a saved graph, or Chakra traces (NAME.RANK.et).")],
    cluster: Annotated[
        str | None, typer.Option(help="Cluster file or preset that prices communication; without it a plain guess.")
    ] = None,
    calibration: Annotated[Path | None, typer.Option(help="Measured collectives that correct the prices.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(help="A change, such as 'rank 12 speed 0.8', 'dp bandwidth 2', 'overlap off'; may be repeated."),
    ] = None,
    background: Annotated[
        list[Path] | None, typer.Option(help="Flow records of other jobs, which load the links; needs --topology.")
    ] = None,
    topology: Annotated[Path | None, typer.Option(help="Where the addresses of --background are (CSV).")] = None,
    contention: Annotated[bool, typer.Option(help="Let concurrent transfers share links; needs --cluster.")] = False,
    jitter: Annotated[
        float, typer.Option(help="Vary every duration by this much (sigma of its logarithm).", min=0.0, max=3.0)
    ] = 0.0,
    seeds: Annotated[int, typer.Option("--draws", help="How many times to draw under --jitter.", min=1)] = 20,
    chakra: Annotated[bool, typer.Option(help="Also write Chakra traces of all ranks to --output.")] = False,
    output: OutputDir = None,
    json: JsonFlag = False,
) -> None:
    """Solve a saved graph: step time, critical path, overlap; and the same after each what-if."""
    from prism.simulate import (
        ClusterCosts,
        Jitter,
        Plan,
        SolveConfig,
        apply_change,
        assess_communication,
        compare_plans,
        load_graph,
        read_chakra,
        sample_steps,
    )
    from prism.simulate.what_if.comparison import solve_plan

    if calibration is not None and cluster is None:
        raise typer.BadParameter("a calibration corrects a cluster's prices; give --cluster too")
    if chakra and output is None:
        raise typer.BadParameter("--chakra needs a folder to write to; give --output DIR")
    loaded = read_chakra(graph) if graph.is_dir() and next(graph.glob("*.et"), None) else load_graph(graph)
    costs = _cost_model(cluster, calibration)
    if cluster is None:
        note("no --cluster given: communication is priced by latency and bandwidth alone, as a guess")
    before = after = Plan(
        graph=loaded, config=SolveConfig(note_ops=True), background=_loads(costs, background, topology),
        gpu=costs.cluster.gpu if isinstance(costs, ClusterCosts) else "",
    )  # fmt: skip
    for change in what_if or ():
        after = apply_change(after, change)
    document: dict[str, Any] = {"schema": "prism.simulation/1", "graph": loaded.name, "what_if": what_if or []}
    if what_if:
        comparison = compare_plans(before, after, costs, contention=contention)
        outcome = comparison.after
        document |= comparison.to_json()
    else:
        outcome = solve_plan(before, costs, contention=contention)
        document |= outcome.to_json()
    if isinstance(costs, ClusterCosts):
        known = assess_communication(after.graph, costs)
        document["communication"] = known.to_json()
        if known.needs_calibration:
            note(_ask_for_calibration(known))
    if jitter:
        noise = Jitter(compute_sigma=jitter, communication_sigma=jitter)
        drawn = SolveConfig(slowdowns=after.config.slowdowns, bandwidth=after.config.bandwidth, jitter=noise)
        document["jitter"] = _percentiles(sample_steps(after.graph, costs, drawn, seeds), jitter, seeds)
    if output is not None:
        document["files"] = _write(outcome, output, chakra)
    if json:
        show_json(document)
        return
    if what_if:
        _show_comparison(comparison, what_if)
    _show_outcome(outcome)
    if jitter:
        spread = document["jitter"]
        show(
            table(
                f"step time over {seeds} draws, ms",
                ["p5", "p50", "p95", "p99"],
                [[f"{spread[p] / 1e6:,.3f}" for p in ("p5_ns", "p50_ns", "p95_ns", "p99_ns")]],
            )
        )


def _ask_for_calibration(known: Assessment) -> str:
    factor = 1 + known.error_band_pct / 100
    return (
        f"communication is modelled: on networks like this one measured times lie within a factor of {factor:.1f}; "
        "measure yours with nccl-tests, then `prism calibrate --nccl-tests OUTPUT --output FILE`, and pass "
        "--calibration FILE"
    )


def _cost_model(cluster: str | None, calibration: Path | None) -> Any:
    from prism.simulate import ClusterCosts, LinearCosts, load_cluster, read_calibration

    if cluster is None:
        return LinearCosts()
    return ClusterCosts(load_cluster(cluster), None if calibration is None else read_calibration(calibration))


def _loads(costs: Any, background: list[Path] | None, topology: Path | None) -> Any:
    """The load of other jobs on the links, from their flow records."""
    from prism.collect import load_inputs
    from prism.errors import BadFileError
    from prism.records import TOPOLOGY, read_table
    from prism.simulate import ClusterCosts
    from prism.simulate.what_if.background import measure_background

    if not background:
        return ()
    if topology is None or not isinstance(costs, ClusterCosts):
        raise typer.BadParameter("--background needs --topology (where its addresses are) and --cluster")
    loads = measure_background(load_inputs(background).flows, read_table(topology, TOPOLOGY), costs.cluster)
    if not loads:
        raise BadFileError(f"{background[0]}: the records of --background carry no bytes between the cluster's hosts")
    busiest = max(loads, key=lambda entry: entry.load)
    note(f"other jobs load {len(loads)} links; the busiest, {busiest.where}, by {busiest.load:.0%}")
    return loads


def _percentiles(steps: Any, sigma: float, seeds: int) -> dict[str, Any]:
    import numpy as np

    points = {f"p{p}_ns": float(np.percentile(steps, p)) for p in (5, 50, 95, 99)}
    return {"sigma": sigma, "seeds": seeds, "mean_ns": float(np.mean(steps)), **points}


def _write(outcome: Outcome, folder: Path, chakra: bool) -> list[str]:
    """Write the spans of one rank per cell, the critical path, and on request the Chakra traces."""
    from prism.simulate import export_chakra, measure_usage, write_spans

    folder.mkdir(parents=True, exist_ok=True)
    solution = outcome.solution
    write_spans(solution, solution.wiring.representative.tolist()).write_parquet(folder / "spans.parquet")
    outcome.path.write_parquet(folder / "critical_path.parquet")
    measure_usage(solution, all_ranks=True).write_parquet(folder / "usage.parquet")
    files = ["spans.parquet", "critical_path.parquet", "usage.parquet"]
    if chakra:
        export_chakra(solution.graph, folder / "chakra")
        files.append("chakra")
    note(f"wrote {', '.join(files)} to {folder}")
    return [str(folder / name) for name in files]


def _show_outcome(outcome: Outcome) -> None:
    solution = outcome.solution
    steps = outcome.step_ns
    show(
        f"{solution.graph.name}: {solution.graph.num_ranks:,} ranks, {len(steps)} steps, "
        f"mean step {sum(steps) / len(steps) / 1e6:,.3f} ms ({solution.num_cells} ranks solved)"
    )
    kinds = outcome.share("kind").head(8).rows()
    show(table("critical path", ["what", ">ms", ">share"], [[k, f"{ns / 1e6:,.3f}", f"{s:.1%}"] for k, ns, s in kinds]))
    rows = [[r["what"], f"{r['mean_ns'] / 1e6:,.3f}", f"{r['share']:.1%}"] for r in outcome.usage.to_dicts()]
    show(table("mean over ranks", ["what", ">ms", ">of the run"], rows))


def _show_comparison(comparison: Comparison, changes: list[str]) -> None:
    before, after = comparison.before.solution.total_ns, comparison.after.solution.total_ns
    show(
        f"what if {'; '.join(changes)}: {before / 1e6:,.3f} ms -> {after / 1e6:,.3f} ms "
        f"({(after - before) / max(before, 1):+.1%}, {comparison.speedup:.3f}x)"
    )
    rows = [
        [r["kind"], *(f"{r[c] / 1e6:,.3f}" for c in ("before_ns", "after_ns", "change_ns"))]
        for r in comparison.moved().to_dicts()
    ]
    show(table("where the time went (critical path, ms)", ["what", ">before", ">after", ">change"], rows))
