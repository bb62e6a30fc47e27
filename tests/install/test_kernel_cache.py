"""Compiled kernels are kept apart for every state of the source."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from prism.kernel_cache import _name_source, choose_cache_folder
from prism.kernel_sources import KERNEL_SOURCES
from prism.serve.timeline import raster

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "prism"


def find_kernel_sources(package: Path) -> list[str]:
    """Files that compile something, and those whose names a compiled function uses."""
    found = set()
    for path in package.rglob("*.py"):
        text = path.read_text()
        if not any(word in text for word in ("import numba", "from numba", "from prism.kernel import")):
            continue
        found.add(path)
        tree = ast.parse(text)
        origins = {
            name.asname or name.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prism.")
            for name in node.names
        }
        used = {name for kernel in list_kernels(tree) for name in names_in(kernel)}
        for name in used & origins.keys():
            place = package / str(origins[name]).removeprefix("prism.").replace(".", "/")
            found.add(place / "__init__.py" if place.is_dir() else place.with_suffix(".py"))
    return sorted(path.relative_to(package).as_posix() for path in found)


def list_kernels(tree: ast.Module) -> list[ast.FunctionDef]:
    """Functions that are compiled; all of a file's where it compiles by a call, whose argument may be any of them."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    decorated = [
        f for f in functions if any("jit" in ast.unparse(d) or ast.unparse(d) == "kernel" for d in f.decorator_list)
    ]
    return decorated or functions


def names_in(kernel: ast.FunctionDef) -> Iterator[str]:
    """Names that the body uses; types in the signature change nothing that is compiled."""
    for line in kernel.body:
        yield from (node.id for node in ast.walk(line) if isinstance(node, ast.Name))


def test_any_changed_source_of_kernels_changes_the_name(tmp_path: Path) -> None:
    inner = tmp_path / "solve"
    inner.mkdir()
    (inner / "kernel.py").write_text("a = 1\n")
    (tmp_path / "caller.py").write_text("b = 2\n")
    (tmp_path / "page.py").write_text("c = 3\n")
    sources = ("caller.py", "solve/kernel.py")
    before = _name_source(tmp_path, sources)
    (tmp_path / "page.py").write_text("c = 34\n")
    assert _name_source(tmp_path, sources) == before, "a file without kernels compiles nothing anew"
    (inner / "kernel.py").write_text("a = 12\n")
    changed = _name_source(tmp_path, sources)
    assert changed != before
    os.utime(tmp_path / "caller.py", ns=(1, 1))
    assert _name_source(tmp_path, sources) != changed


def test_every_file_that_kernels_are_made_of_is_listed() -> None:
    assert "\n".join(KERNEL_SOURCES) == "\n".join(find_kernel_sources(PACKAGE)), "copy the right side into the list"


def test_a_file_that_a_kernel_takes_a_constant_from_is_found(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("PAGE = 3\n")
    (tmp_path / "words.py").write_text("NAME = 'x'\n")
    (tmp_path / "kernel.py").write_text(
        "import numba\nfrom prism.sizes import PAGE\nfrom prism.words import NAME\n\n"
        "@numba.njit(cache=True)\ndef run():\n    return PAGE\n\ndef tell():\n    return NAME\n"
    )
    assert find_kernel_sources(tmp_path) == ["kernel.py", "sizes.py"]


def test_the_folder_of_the_user_is_kept() -> None:
    chosen = {"HOME": "/home/someone", "NUMBA_CACHE_DIR": "/scratch/numba"}
    choose_cache_folder(chosen)
    assert chosen["NUMBA_CACHE_DIR"] == "/scratch/numba"


def test_without_a_home_numba_is_left_as_it_is() -> None:
    nowhere: dict[str, str] = {}
    choose_cache_folder(nowhere)
    assert nowhere == {}


def test_the_folder_lies_in_the_users_cache() -> None:
    environ = {"HOME": "/home/someone", "XDG_CACHE_HOME": "/var/cache/someone"}
    choose_cache_folder(environ)
    assert environ["NUMBA_CACHE_DIR"].startswith("/var/cache/someone/prism/kernels/")


def test_every_kernel_that_is_compiled_ahead_is_there():
    lines = [line for path in (ROOT / "scripts" / "kernels").iterdir() for line in path.read_text().splitlines()]
    assert lines
    for line in lines:
        module, name, arguments = line.split(maxsplit=2)
        kernel = getattr(importlib.import_module(module), name, None)
        assert kernel is not None, f"{module} has no {name}: python scripts/compile_kernels.py tour --record"
        types = ast.parse(arguments, mode="eval").body
        assert isinstance(types, ast.Tuple), line
        assert len(types.elts) == len(inspect.signature(kernel.py_func).parameters), line


def test_the_loops_of_timelines_are_compiled_ahead_with_those_of_the_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = importlib.import_module("compile_kernels")
    monkeypatch.setattr(script, "make_scenario", lambda *unused, **more: None)
    monkeypatch.setattr(raster, "_warm", threading.Event())
    script.run_small("tour")
    assert raster.is_warm()
