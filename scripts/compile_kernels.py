"""Compile what is otherwise compiled on first use, so that the first diagnosis does not wait for it.

`kernel_signatures.txt` lists what a tour needs, and every core takes a part of it. The list is a help and no contract:
what it misses is compiled by the diagnoses at the end, and what it names in vain is passed over. `--record` writes it
anew from the kernels that are compiled by now.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from prism.kernel_sources import KERNEL_SOURCES
from prism.observe import build_timeline
from prism.observe.diagnose import diagnose
from prism.scenarios import load_scenario, make_scenario
from prism.scenarios.run import ScenarioRun

# After prism, which chooses the folder that numba keeps compiled kernels in.
from numba import types  # isort: skip
from numba.core.dispatcher import Dispatcher  # isort: skip

LIST = Path(__file__).with_name("kernel_signatures.txt")


def main(arguments: list[str]) -> None:
    """Compile with all cores, then diagnose small clusters, one healthy and one with a fault."""
    match arguments:
        case ["--record"]:
            LIST.write_text("".join(f"{line}\n" for line in _list_compiled()))
        case ["--part", part, parts]:
            if part == "0":
                _make_clusters()  # its kernels take tuples with names, which the list leaves out
            compile_listed(LIST.read_text().splitlines()[int(part) :: int(parts)])
        case _:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            command = [sys.executable, __file__, "--part"]
            parts = [subprocess.Popen([*command, str(part), str(cores)]) for part in range(cores)]
            for part in parts:
                part.wait()
            _diagnose()


def compile_listed(lines: list[str]) -> int:
    """Compile the kernels that lines of the list name; how many there were to compile."""
    compiled = 0
    for line in lines:
        module, name, arguments = line.split(maxsplit=2)
        try:
            kernel = getattr(importlib.import_module(module), name)
            kernel.compile(eval(arguments, vars(types)))
            compiled += 1
        except Exception as error:  # an old line must not keep anybody from a tour
            print(f"{LIST.name}: {name}: {' '.join(str(error).split())[:80]}", file=sys.stderr)
    return compiled


def _list_compiled() -> Iterator[str]:
    """Lines of the list for every kernel in the cache whose types can be written down."""
    for source in KERNEL_SOURCES:
        module = "prism." + source.removesuffix(".py").replace("/", ".")
        for name, kernel in vars(importlib.import_module(module)).items():
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


def _make_clusters() -> list[ScenarioRun]:
    return [make_scenario(load_scenario(name), seed=0) for name in ("dense-dp-16", "slow-gpu-64")]


def _diagnose() -> None:
    for made in _make_clusters():
        build_timeline(diagnose(made.flows, made.topology))


if __name__ == "__main__":
    main(sys.argv[1:])
