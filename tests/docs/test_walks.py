"""The walks through the code in docs/contribute/ are followed as they are written, on a copy of the source."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from runnable_pages import ROOT, Ended, apply_edit, edit, follow, matches, run

WALKS = sorted(page for page in (ROOT / "docs" / "contribute").glob("*.md") if page.name != "index.md")


LONG = {"finding"}  # diagnoses three times


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem in LONG)) for p in WALKS]
)
def test_a_walk_leads_where_it_says(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    for path in ("tests/evidence/logs/test_explain_rules.py", "tests/conftest.py", "pyproject.toml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    assert follow(page, tmp_path, run_in_copy) >= 2


@pytest.mark.parametrize("page", WALKS, ids=lambda page: page.stem)
def test_the_edits_of_a_walk_fit_the_source(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    files = edit(page, tmp_path)
    assert any(file.is_relative_to(tmp_path / "src") for file in files)
    for file in files:
        if file.suffix == ".py":
            ast.parse(file.read_text())


def run_in_copy(command: str, folder: Path) -> Ended:
    """Run a command on the copy, without compiling its kernels anew, which takes minutes; inputs of walks are small."""
    if command.startswith("prism scenario"):  # no walk edits it, so the kernels of this source will do
        return run(command, folder)
    return run(command, folder, folder / "src", NUMBA_DISABLE_JIT="1", PYTHONWARNINGS="ignore::RuntimeWarning")


def test_every_walk_is_listed_and_the_readme_leads_to_them() -> None:
    index = (ROOT / "docs" / "contribute" / "index.md").read_text()
    assert len(WALKS) >= 4 and all(f"({page.name})" in index for page in WALKS)
    assert "docs/contribute/index.md" in (ROOT / "README.md").read_text()


def test_an_edit_whose_lines_are_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\n")
    with pytest.raises(AssertionError, match="0 times"):
        apply_edit(tmp_path / "a.py", " one\n+new\n three\n")
    apply_edit(tmp_path / "a.py", " one\n+new\n two\n")
    assert (tmp_path / "a.py").read_text() == "one\nnew\ntwo\n"


def test_output_is_compared_apart_from_what_is_left_open() -> None:
    assert matches("a ... c", "x a  b\n c y")
    assert not matches("a ... d", "a b c")
