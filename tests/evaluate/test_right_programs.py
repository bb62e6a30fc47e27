"""Right programs pass, also where other programs want the same cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from right_programs import make_all

from prism.evaluate.run.scoring.sandbox import SandboxConfig, run_sandboxed, why_no_isolation

pytestmark = pytest.mark.skipif(why_no_isolation() is not None, reason=f"{why_no_isolation()}")
ALL = make_all()
CONFIG = SandboxConfig(wall_s=3.0, cpu_s=3)


def test_there_are_two_hundred() -> None:
    assert len(ALL) >= 200


@pytest.mark.parametrize("name", sorted(ALL)[::8])
def test_a_right_program_passes(name: str) -> None:
    right = ALL[name]
    done = run_sandboxed(right.program, right.test, CONFIG, right.given)
    assert done.passed, done.text


@pytest.mark.slow
def test_all_right_programs_pass(load: None) -> None:
    found = {name: run_sandboxed(r.program, r.test, CONFIG, r.given) for name, r in ALL.items()}
    assert not {name: done for name, done in found.items() if not done.passed}


@pytest.mark.slow
def test_a_program_that_is_wrong_in_one_call_fails() -> None:
    """The same tests fail where what is compared is changed: they do test."""
    spoilt = {name: right for name, right in ALL.items() if name.endswith("asserts")}
    for name, right in spoilt.items():
        wrong = (
            f"{right.program}\n_right = {name.split(',')[0]}\ndef {name.split(',')[0]}(*a, **k):\n    return object()"
        )
        assert not run_sandboxed(wrong, right.test, CONFIG).passed, name


@pytest.fixture
def load() -> Iterator[None]:
    """Four processes for every core that do nothing but compute."""
    num = 4 * (os.cpu_count() or 1)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num)]
    yield
    for process in busy:
        process.kill()
        process.wait()
