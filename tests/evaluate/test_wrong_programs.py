"""No program that does not do its task passes its tests."""

from __future__ import annotations

import pytest
from wrong_programs import WRONG_PROGRAMS

from prism.evaluate.run.scoring import sandbox
from prism.evaluate.run.scoring.sandbox import SandboxConfig, run_sandboxed

pytestmark = pytest.mark.skipif(
    all(sandbox.why_not(walls) is not None for walls in ("own", "bubblewrap")), reason="no walls hold on this machine"
)


def test_there_are_at_least_sixty_and_each_is_python() -> None:
    assert len(WRONG_PROGRAMS) >= 60
    for name, (program, tests) in WRONG_PROGRAMS.items():
        compile(program, name, "exec")
        compile(tests, name, "exec")


@pytest.mark.parametrize("name", WRONG_PROGRAMS)
def test_a_wrong_program_does_not_pass(name: str) -> None:
    program, tests = WRONG_PROGRAMS[name]
    for _ in range(2):  # what the first run left must not help the second
        assert not run_sandboxed(program, tests, SandboxConfig(wall_s=3.0, cpu_s=1)).passed
