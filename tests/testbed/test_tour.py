"""The tour's parts, without running them: the commands exist and the sums are drawn from what they print."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from prism.cli.main import app
from prism.errors import PrismError
from prism.tour.parts import call, list_parts


def test_every_part_is_a_command_that_prism_has(tmp_path: Path) -> None:
    known = set(getattr(get_command(app), "commands", {}))
    assert {part.words[0] for part in list_parts(tmp_path)} <= known


def test_a_part_that_fails_tells_the_command_and_its_own_words() -> None:
    with pytest.raises(PrismError, match=r"prism explain ended with exit code 2: .*no-such.log"):
        call(("explain", "/no-such.log"))


def test_parts_are_summed_up_in_a_few_words(tmp_path: Path) -> None:
    parts = {part.name: part for part in list_parts(tmp_path)}
    scored = {"trials": 2, "makespan_s": 4.5, "lower_bound_s": 2.4, "results": {"step-1": {"text": {"bits": 3.0}}}}
    assert parts["evaluate"].sum_up([scored]) == ["2 trials in 4.5 s, at least 2.4 s", "step-1: text 3"]
    verdict = {"log": "a.log", "reason": "NodeFailure", "category": "infrastructure", "action": "restart"}
    assert parts["explain"].sum_up([verdict]) == ["a.log: NodeFailure (infrastructure), so restart"]
