"""`prism check`: a verdict, whose ranks, at which line; exit 0, 2 or 3, and no word about time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from prism.emulate.check_documents import describe_check, write_junit, write_sarif
from prism.emulate.checking import CheckReport
from prism.emulate.problems import Problem, hang_problem, list_ranks, odd_problem, read_problem

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"


def _check(script: str, *arguments: str, world: int = 4, cwd: Path = ROOT) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "prism.cli.main", "check", "-q", "--world-size", str(world), "--json", "--"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, str(SCRIPTS / script), *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_tables_dealt_unevenly_are_no_hang() -> None:
    code, document, _ = _check("tables_dealt.py")
    assert (code, document["verdict"], document["problems"]) == (0, "clean", [])
    assert document["schema"] == "prism.check/1"
    assert document["ranks_run"] == document["world_size"] == 4


def test_opposite_orders_are_told_as_such() -> None:
    code, document, _ = _check("opposite_orders.py")
    problem = document["problems"][0]
    assert (code, document["verdict"]) == (2, "hang")
    assert 1 in problem["ranks"]
    assert "in opposite orders" in problem["text"]
    assert (problem["file"], problem["line"]) == ("tests/emulate/scripts/opposite_orders.py", 16)


def test_the_hang_of_an_asynchronous_save_names_the_line_that_began_it(tmp_path: Path) -> None:
    code, document, _ = _check("save_on_one_rank.py", str(tmp_path / "saved"), cwd=tmp_path)
    problem = document["problems"][0]
    assert (code, document["verdict"]) == (2, "hang")
    assert problem["file"] == str(SCRIPTS / "save_on_one_rank.py")
    assert problem["line"] == 19


def test_a_program_that_fails_by_itself_cannot_be_checked() -> None:
    code, document, errors = _check("fails_by_itself.py", world=2)
    assert (code, document["verdict"]) == (3, "unsupported")
    text = document["problems"][0]["text"]
    assert "rank 1 failed in the script: ValueError: no data for this rank" in text
    assert "fails_by_itself.py:7" in text
    assert "Traceback" not in errors


def test_ranks_of_a_sentence() -> None:
    assert list_ranks("ranks 1, 2, 3 and 4 more never call it, which rank 0 waits in") == (0, 1, 2, 3)
    assert list_ranks("ranks 0 and 1 make two calls") == (0, 1)
    problem = read_problem("rank 3 waits at train.py:12 for rank 5")
    assert (problem.ranks, problem.file, problem.line) == ((3, 5), "train.py", 12)


@pytest.mark.parametrize(
    ("problem", "verdict"),
    [
        (hang_problem("rank 1 never calls it", [1], "src/train.py:7"), "hang"),
        (odd_problem("rank 1 calls barrier", [1], "src/train.py:7"), "mismatch"),
    ],
)
def test_problems_as_sarif_and_junit(problem: Problem, verdict: str, tmp_path: Path) -> None:
    report = _report(problem.verdict, (problem,))
    assert report.exit_code == 2
    write_sarif(report, tmp_path / "check.sarif", "src/train.py")
    result = json.loads((tmp_path / "check.sarif").read_text())["runs"][0]["results"][0]
    place = result["locations"][0]["physicalLocation"]
    assert result["ruleId"] == verdict
    assert place == {"artifactLocation": {"uri": "src/train.py"}, "region": {"startLine": 7}}
    write_junit(report, tmp_path / "check.xml", "src/train.py")
    suite = ET.parse(tmp_path / "check.xml").getroot()
    assert suite.get("failures") == "1"
    assert suite.find("testcase/failure").attrib["line"] == "7"  # type: ignore[union-attr]


def test_what_cannot_be_checked_is_an_error_of_the_report_and_no_pass(tmp_path: Path) -> None:
    report = _report("unsupported", (), "DeepEP moves tokens by NVSHMEM")
    assert report.exit_code == 3
    assert describe_check(report)["problems"][0]["text"] == "DeepEP moves tokens by NVSHMEM"
    write_junit(report, tmp_path / "check.xml", "train.py")
    assert ET.parse(tmp_path / "check.xml").getroot().get("errors") == "1"
    write_sarif(report, tmp_path / "check.sarif", "train.py")
    assert json.loads((tmp_path / "check.sarif").read_text())["runs"][0]["results"][0]["level"] == "warning"


def test_a_sample_of_the_ranks_is_called_one() -> None:
    assert "of 256; the others were not run" in _report("clean", (), world=256).describe()


def test_the_pytest_fixture_fails_a_test_whose_script_would_hang(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(
        f"def test_good(prism_check):\n    assert prism_check({str(SCRIPTS / 'tables_dealt.py')!r}, world_size=2)\n"
        f"def test_bad(prism_check):\n    prism_check({str(SCRIPTS / 'opposite_orders.py')!r}, world_size=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "pytest", "-p", "prism.emulate.pytest_plugin", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout
    assert "in opposite orders" in done.stdout


def _report(verdict: Any, problems: tuple[Problem, ...], reason: str = "", world: int = 8) -> CheckReport:
    return CheckReport(
        world_size=world, verdict=verdict, ranks_run=8, problems=problems, reason=reason, output="", wall_s=1.0
    )
