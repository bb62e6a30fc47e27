"""Compiled kernels are kept apart for every state of the source."""

from __future__ import annotations

import os
from pathlib import Path

from prism.kernel_cache import _name_source, choose_cache_folder


def test_any_changed_source_file_changes_the_name(tmp_path: Path) -> None:
    inner = tmp_path / "solve"
    inner.mkdir()
    (inner / "kernel.py").write_text("a = 1\n")
    (tmp_path / "caller.py").write_text("b = 2\n")
    before = _name_source(tmp_path)
    assert _name_source(tmp_path) == before
    (inner / "kernel.py").write_text("a = 12\n")
    changed = _name_source(tmp_path)
    assert changed != before
    os.utime(tmp_path / "caller.py", ns=(1, 1))
    assert _name_source(tmp_path) != changed


def test_compiled_files_and_caches_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("a = 1\n")
    before = _name_source(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "kernel.py").write_text("x")
    (tmp_path / "kernel.nbi").write_text("x")
    assert _name_source(tmp_path) == before


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
