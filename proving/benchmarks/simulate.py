"""How fast the solver is: op-instances a second unfolded, and one folded step from 64 to 65,536 ranks.

python proving/benchmarks/simulate.py            all figures
python proving/benchmarks/simulate.py --quick    smaller sizes, for a first look
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prism.simulate import Graph, GraphBuilder, LinearCosts, Slowdown, SolveConfig, solve
from prism.simulate.builder import ProgramBuilder

COMPUTE, NETWORK, GRADIENTS = 0, 1, 2  # streams


def write_stage(program: ProgramBuilder, stage: int, num_stages: int, ops_wanted: int, microbatches: int = 16) -> None:
    """One pipeline stage under 1F1B: layers with two tensor-parallel all-reduces, overlapped gradient buckets."""
    layers = max(1, (ops_wanted // microbatches - 12) // 16)
    warmup = min(num_stages - stage, microbatches)
    order = ["f"] * warmup + ["b", "f"] * (microbatches - warmup) + ["b"] * warmup
    backward = 0
    program.step = 0
    for what in order:
        step = 1 if what == "f" else -1
        if 0 <= stage - step < num_stages:
            program.recv("pp", 1 << 24, peer=stage - step, stream=NETWORK + (what == "b"))
            program.join(waiter=COMPUTE, on=NETWORK + (what == "b"))
        for layer in range(layers):
            program.compute("attention", 400_000 + stage)
            program.compute("norm", 20_000)
            program.all_reduce("tp", 1 << 24)
            program.compute("mlp", 600_000 + layer)
            program.compute("act", 20_000)
            program.all_reduce("tp", 1 << 24)
            if what == "b" and backward == microbatches - 1:
                program.join(waiter=GRADIENTS + 2, on=COMPUTE)
                program.reduce_scatter("dp", 1 << 26, stream=GRADIENTS + 2)
            else:
                program.compute("gemm", 100_000)
                program.compute("gemm", 100_000)
        backward += what == "b"
        if 0 <= stage + step < num_stages:
            program.join(waiter=3 + (what == "b") * 2, on=COMPUTE)
            program.send("pp", 1 << 24, peer=stage + step, stream=3 + (what == "b") * 2)
    program.join(waiter=COMPUTE, on=GRADIENTS + 2)
    program.compute("optimizer", 2_000_000)
    program.all_gather("dp", 1 << 28)


def build_mesh(dp: int, pp: int, tp: int, ops_per_rank: int, gpus_per_host: int = 8) -> Graph:
    """A dp x pp x tp job, tensor groups inside hosts, one class per stage."""
    builder = GraphBuilder(f"mesh-{dp}x{pp}x{tp}")
    for stage in range(pp):
        write_stage(builder.program(), stage, pp, ops_per_rank)
    ranks = np.arange(dp * pp * tp)
    grid = ranks.reshape(pp, dp, tp)
    builder.ranks(ranks, ranks // (dp * tp), ranks // gpus_per_host, ranks % gpus_per_host)
    builder.groups("tp", grid.reshape(-1, tp))
    builder.groups("dp", grid.transpose(0, 2, 1).reshape(-1, dp))
    builder.groups("pp", grid.transpose(1, 2, 0).reshape(-1, pp))
    return builder.build()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall seconds of one call, and what it returned."""
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def peak_gb() -> float:
    """The most memory this process ever held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure_unfolded(dp: int, ops: int) -> None:
    """Op-instances per CPU second of the inner loop alone, and of all of `solve`."""
    from prism.simulate.solving.kernel import Chance, make_state, run

    graph = build_mesh(dp, 8, 8, ops)
    seconds, solution = best_of(2, lambda: solve(graph, LinearCosts(), SolveConfig(fold=False)))
    program, wires = solution.program, solution.wiring.wires
    instances = graph.num_op_instances
    mix = graph.ops["kind"].cast(str).value_counts(normalize=True)
    talks = mix.filter(~mix["kind"].is_in(["compute", "record", "wait"]))["proportion"].sum()
    best = float("inf")
    for _ in range(3):
        state = make_state(program.code, wires, program.lane_nodes, len(program.steps), note=False)
        best = min(best, best_of(1, lambda s=state: run(wires, s, Chance(0, 0.0, 0.0)))[0])
    print(
        f"  {graph.num_ranks} ranks x {graph.ops.height // 8} ops = {instances / 1e6:.1f} M op-instances, "
        f"{talks:.0%} communication"
    )
    print(
        f"  inner loop {best:.2f} CPU s = {instances / best / 1e6:.1f} M op-instances/s; all of solve "
        f"{seconds:.2f} CPU s = {instances / seconds / 1e6:.1f} M/s"
    )


def measure_folded(sizes: list[int], ops: int) -> None:
    """One symmetric step from small to large; ops per rank stay the same."""
    print("  ranks    dp x pp x tp     build s  solve s  CPU s  cells  op-instances  step s   peak GB")
    for ranks in sizes:
        pp = 8 if ranks < 1024 else 16
        dp = ranks // (pp * 8)
        build, graph = timed(lambda d=dp, p=pp: build_mesh(d, p, 8, ops))
        busy = time.process_time()
        seconds, solution = timed(lambda g=graph: solve(g, LinearCosts()))
        busy = time.process_time() - busy
        shape = f"{dp} x {pp} x 8"
        print(
            f"  {ranks:<8} {shape:<16} {build:7.2f}  {seconds:7.2f}  {busy:5.2f}  {solution.num_cells:5d}"
            f"  {graph.num_op_instances:12.3g}  {solution.total_ns / 1e9:6.3f}  {peak_gb():7.2f}"
        )


def best_of(times: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of the shortest of several runs, for figures that are compared with each other."""
    runs = []
    for _ in range(times):
        begin = time.process_time()
        result = call()
        runs.append((time.process_time() - begin, result))
    return min(runs, key=lambda run: run[0])


def measure_growth(ranks: int, ops: list[int], perturbed: list[int]) -> None:
    """CPU seconds against ops per rank, and against perturbed ranks; best of three."""
    dp = ranks // 64
    print("  ops/rank       CPU s   us per solved op")
    for wanted in ops:
        graph = build_mesh(dp, 8, 8, wanted)
        seconds, _ = best_of(3, lambda g=graph: solve(g, LinearCosts()))
        solved = graph.ops.height
        print(f"  {solved // 8:8d}  {seconds:9.2f}  {seconds / solved * 1e6:9.2f}")
    graph = build_mesh(dp, 8, 8, 5000)
    print("  perturbed      CPU s   cells   added ms per perturbed rank")
    base = 0.0
    for count in perturbed:
        slow = [Slowdown(target="rank", id=8 * i, speed=0.5 + 0.001 * i) for i in range(count)]
        seconds, solution = best_of(3, lambda s=slow: solve(graph, LinearCosts(), SolveConfig(slowdowns=s)))
        base = seconds if count == 0 else base
        added = f"{(seconds - base) / count * 1e3:9.2f}" if count else ""
        print(f"  {count:8d}  {seconds:9.2f}  {solution.num_cells:6d}  {added}")


def measure_alternatives() -> None:
    """The same job solved unfolded, and by a plain Python solver that the tests believe in; CPU seconds."""
    graph = build_mesh(8, 8, 8, 5000)
    folded, one = best_of(3, lambda: solve(graph, LinearCosts()))
    whole, two = best_of(3, lambda: solve(graph, LinearCosts(), SolveConfig(fold=False)))
    assert one.total_ns == two.total_ns
    print(
        f"  512 ranks x 5,000 ops: unfolded {whole:.2f} s, folded {folded:.2f} s, ratio {whole / folded:.1f}, same end"
    )
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "simulate"))
    from meshes import solve_plainly

    graph = build_mesh(4, 4, 4, 1600)
    plain, ends = best_of(1, lambda: solve_plainly(graph, LinearCosts()))
    ours, solution = best_of(3, lambda: solve(graph, LinearCosts(), SolveConfig(fold=False)))
    assert solution.total_ns == max(ends.values())
    count = graph.num_op_instances
    print(
        f"  {count:,} op-instances: plain Python {count / plain / 1e3:.0f} k/s, solve {count / ours / 1e3:.0f} k/s, "
        f"ratio {plain / ours:.0f}, same end"
    )


def main() -> None:
    """Print every figure with the machine it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print("the kernel uses one core, Polars may use all; CPU seconds count every core")
    warm, _ = timed(lambda: solve(build_mesh(2, 2, 2, 200), LinearCosts()))
    print(f"first solve, with compiling or loading the compiled kernels: {warm:.1f} s")
    print("folded, everything from the checks to the step time:")
    measure_folded([64, 512, 4096] if quick else [64, 512, 2048, 8192, 16384, 65536], 2000 if quick else 20000)
    print("unfolded:")
    measure_unfolded(4 if quick else 32, 5000 if quick else 20000)
    print("against the alternatives:")
    measure_alternatives()
    print("growth at 8,192 ranks:")
    measure_growth(
        8192,
        [1250, 2500, 5000] if quick else [2500, 5000, 10000, 20000, 40000],
        [0, 2, 8] if quick else [0, 2, 8, 32, 64, 128],
    )


if __name__ == "__main__":
    main()
