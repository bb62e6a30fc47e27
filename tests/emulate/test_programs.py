"""Training scripts as other people write them: each gives a prediction, or its planted bug is named."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "proving" / "benchmarks"))

from emulate_programs import MODULES, Case, read_cases, run_case  # noqa: E402

FOLDERS = [Path(__file__).parent / "programs", *map(Path, filter(None, [os.environ.get("PRISM_PROGRAMS")]))]
LARGEST = int(os.environ.get("PRISM_PROGRAMS_LARGEST", "32"))  # worlds of the slow suite


def _cases() -> list[Case]:
    found = [case for folder in FOLDERS if (folder / "cases.json").is_file() for case in read_cases(folder)]
    return [case for case in found if case.world <= LARGEST]


@pytest.mark.slow
@pytest.mark.parametrize("case", _cases(), ids=lambda case: f"{case.name}-{case.world}")
def test_program(case: Case) -> None:
    needed = MODULES.get(case.name[:3])
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    result = run_case(case, 360)
    assert result.right, f"{result.outcome}: {result.told}"


def test_a_message_is_judged_by_the_ranks_it_names() -> None:
    from emulate_programs import _judge

    case = Case(name="x", script=("x.py",), world=8, expect="bug", real_cpu_ms=(), culprits=frozenset({5}))
    told = "this would hang on a cluster: rank {} calls barrier where ranks 0, 1 and 6 more call all_reduce"
    assert _judge(case, None, told.format(5), "false hang").right
    assert _judge(case, None, told.format(4), "false hang").outcome == "wrong rank"
    assert _judge(case, {"iteration_ms": {"mean": 1.0}, "split": {"compute": 1.0}}, "", "works").outcome == "bug missed"
