"""Compile what is otherwise compiled on first use, so that the first diagnosis does not wait for it.

    python scripts/compile_kernels.py tour            # what `make demo` needs
    python scripts/compile_kernels.py tests           # what the test suite needs besides
    python scripts/compile_kernels.py tour --record   # write the list anew from the kernels that are compiled by now

`kernels/tour.txt` and `kernels/tests.txt` list kernels with the types they are called with, and every core takes a part
of them. The lists are a help and no contract: what they miss is compiled on first use.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from prism.kernel import Kernel
from prism.kernel_sources import KERNEL_SOURCES
from prism.lab.scenarios import load_scenario, make_scenario
from prism.serve.timeline.raster import warm_up
from prism.simulate import Cluster, ClusterCosts, GraphBuilder, solve_shared

# After prism, which chooses the folder that numba keeps compiled kernels in.
from numba import types  # isort: skip
from numba.core.dispatcher import Dispatcher  # isort: skip

LISTS = Path(__file__).with_name("kernels")


def main(arguments: list[str]) -> None:
    """Compile a list with all cores."""
    match arguments:
        case [name, "--record"]:
            known = [] if name == "tour" else _read("tour")
            lines = [line for line in _list_compiled() if line not in known]
            (LISTS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
        case [name, part, parts]:
            if part == "0":
                run_small(name)
            compile_listed(_read(name)[int(part) :: int(parts)])
        case [name]:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            command = [sys.executable, __file__, name]
            processes = [subprocess.Popen([*command, str(part), str(cores)]) for part in range(cores)]
            for process in processes:
                process.wait()
        case _:
            sys.exit(__doc__)


def run_small(name: str) -> None:
    """Use the kernels whose types no list can name, since they take tuples with names."""
    if name == "tests":
        builder = GraphBuilder("one message")
        builder.program().send("pp", 1024, peer=1)
        builder.program().recv("pp", 1024, peer=0)
        builder.ranks([0, 1], [0, 1], [0, 1], [0, 0])
        builder.groups("pp", [[0, 1]])
        solve_shared(builder.build(), ClusterCosts(Cluster(name="two hosts", num_hosts=2)))
        return
    for scenario in ("dense-dp-16", "slow-gpu-64"):
        make_scenario(load_scenario(scenario), seed=0)
    warm_up()  # the dashboard's timelines; each of its workers would compile them at its start


def _read(name: str) -> list[str]:
    return (LISTS / f"{name}.txt").read_text().splitlines()


def compile_listed(lines: list[str]) -> None:
    """Compile the kernels that lines of the list name."""
    for line in lines:
        module, name, arguments = line.split(maxsplit=2)
        try:
            kernel = getattr(importlib.import_module(module), name)
            getattr(kernel, "compiled", kernel).compile(eval(arguments, vars(types)))
        except Exception as error:  # an old line must not keep anybody from a tour
            print(f"{module}.{name}: {' '.join(str(error).split())[:80]}", file=sys.stderr)


def _list_compiled() -> Iterator[str]:
    """Lines of the list for every kernel in the cache whose types can be written down."""
    for source in KERNEL_SOURCES:
        module = "prism." + source.removesuffix(".py").replace("/", ".")
        for name, kernel in vars(importlib.import_module(module)).items():
            kernel = kernel.compiled if isinstance(kernel, Kernel) else kernel
            if isinstance(kernel, Dispatcher) and kernel.py_func.__module__ == module:
                for key in kernel._cache._cache_file._load_index():
                    if all(_is_plain(argument) for argument in key[0]):
                        yield f"{module} {name} {key[0]!r}"


def _is_plain(argument: object) -> bool:
    """Whether a type's text gives the type back."""
    try:
        return eval(repr(argument), vars(types)) == argument
    except Exception:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
