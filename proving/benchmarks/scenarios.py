"""How fast scenarios are written: ten minutes of 2,048 GPUs, and flows a second beside a plain Python loop.

python proving/benchmarks/scenarios.py            the large scenario, then the comparison
python proving/benchmarks/scenarios.py NAME ...   other scenarios of the library
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from machine import describe_machine, peak_rss_bytes
from prism.lab.scenarios import load_scenario, make_scenario, write_scenario
from prism.lab.scenarios.scenario import place_jobs
from prism.lab.scenarios.timeline import Disturbance, plan_job, run_job
from prism.simulate.costs import ClusterCosts
from prism.simulate.endpoints import list_endpoints
from prism.simulate.solving.solver import SolveConfig, solve


def measure(name: str) -> None:
    """Read, run and write one scenario, with nothing kept from before."""
    folder = Path(tempfile.mkdtemp())
    begin, cpu = time.perf_counter(), time.process_time()
    made = make_scenario(load_scenario(name))
    run_s = time.perf_counter() - begin
    write_scenario(made, folder)
    total_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    size = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    gpus = sum(job["gpus"] for job in made.truth["jobs"])
    steps = sum(len(job["steps"]) for job in made.truth["jobs"])
    span = (made.truth["end_ns"] - made.truth["start_ns"]) / 1e9
    flows, spans, memory = made.flows.height, made.spans.height, peak_rss_bytes() / 1e9
    print(f"{name}: {gpus:,} GPUs, {span:,.0f} s of traffic, {steps} steps, {flows:,} flows, {spans:,} spans")
    print(f"  made in {run_s:.1f} s, with writing {total_s:.1f} s; {cpu_s:.1f} s of CPU")
    print(f"  {size / 1e6:,.0f} MB on disk, peak memory {memory:.2f} GB")


def compare_with_a_loop() -> None:
    """The same flows of one job: all at once, and message by message from each rank's table of times."""
    scenario = load_scenario("zero1-128")
    layout = place_jobs(scenario)[0]
    plan = plan_job(layout, scenario.cluster, 0, split_replicas=False)
    horizon = round(scenario.duration_s * 1e9)
    begin = time.perf_counter()
    run = run_job(plan, scenario.cluster, Disturbance(), horizon, 0, [0])
    ours = len(run.start_ns) / (time.perf_counter() - begin)

    names = list_endpoints(scenario.cluster)["address"].to_list()
    begin = time.perf_counter()
    solution = solve(plan.graph, ClusterCosts(scenario.cluster), SolveConfig(fold=False, note_ops=True))
    times = {
        r: {row["seq"]: row for row in solution.op_times(r).iter_rows(named=True)} for r in range(layout.job.num_gpus)
    }
    flows = []
    for message in plan.messages.iter_rows(named=True):
        op = times[message["rank"]][message["seq"]]
        flows.append((op["ready_ns"], op["end_ns"], names[message["src"]], names[message["dst"]], message["bytes"]))
    theirs = len(flows) / (time.perf_counter() - begin)
    print(f"solving and listing: {ours:,.0f} flows/s; one by one {theirs:,.0f} flows/s; {ours / theirs:.0f} times")


def main() -> None:
    """Print every figure with the machine it was measured on."""
    print(describe_machine())
    for name in sys.argv[1:] or ["ten-minutes-2048"]:
        measure(name)
    if not sys.argv[1:]:
        compare_with_a_loop()


if __name__ == "__main__":
    main()
