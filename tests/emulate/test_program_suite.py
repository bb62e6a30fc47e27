"""The board of training programs: its manifest is complete, its files compile, and (slow) every program gets the right answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "emulate" / "programs"
CASES: dict[str, dict[str, Any]] = json.loads((PROGRAMS / "cases.json").read_text())
BUGS = {name: case for name, case in CASES.items() if case["expect"] == "bug"}


def test_every_program_has_a_case_and_every_case_a_program():
    assert {case["script"][0] for case in CASES.values()} == {path.name for path in PROGRAMS.glob("*.py")}


def test_the_board_is_large_enough():
    assert len({case["script"][0] for case in CASES.values()}) >= 60
    assert len(BUGS) >= 12


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_program_compiles_and_says_what_it_is(path: Path):
    compiled = compile(path.read_text(), str(path), "exec")
    is_bug = CASES[path.stem[:3]]["expect"] == "bug"
    assert isinstance(compiled.co_consts[0], str)
    assert compiled.co_consts[0].startswith("BUG: ") == is_bug


@pytest.mark.parametrize("name", CASES)
def test_case_is_complete(name: str):
    case = CASES[name]
    assert case["expect"] in ("works", "bug")
    assert case["worlds"] and case["exercises"]
    assert case["scales"] == (256 in case["worlds"])
    assert case["shown"] == (int(name[1:3]) % 2 == 0)
    assert (
        case["real"]["ended"] == "exit 0" if case["expect"] == "works" else case["real"]["ended"] in ("fails", "hangs")
    )


@pytest.mark.parametrize("name", BUGS)
def test_truth_of_a_bug_points_at_its_lines_and_ranks(name: str):
    case = BUGS[name]
    lines = (PROGRAMS / case["script"][0]).read_text().splitlines()
    truth = case["truth"]
    assert lines[truth["line"] - 1].strip() == truth["code"]
    assert lines[truth["call_line"] - 1].strip() == truth["call"]
    assert truth["reason"]
    for world in case["worlds"]:
        culprits = case["culprits"][str(world)]
        assert culprits and all(0 <= rank < world for rank in culprits)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_board_at_the_smallest_world(name: str, tmp_path: Path):
    results = tmp_path / "results.jsonl"
    case = CASES[name]
    for package in ("transformers", "accelerate", "lightning", "deepspeed"):
        if f"import {package}" in (text := (PROGRAMS / case["script"][0]).read_text()) or f"from {package}" in text:
            pytest.importorskip(package)
    board = [sys.executable, str(ROOT / "proving" / "benchmarks" / "emulate_programs.py"), str(PROGRAMS)]
    world = str(min(case["worlds"]))
    subprocess.run(
        [*board, "--only", name, "--worlds", world, "--output", str(results)], check=True, capture_output=True
    )
    wrong = [
        row for row in map(json.loads, results.read_text().splitlines()) if row["name"] == name and not row["right"]
    ]
    assert not wrong, wrong
