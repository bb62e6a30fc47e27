"""A pytest fixture: `prism_check("train.py", world_size=256)` fails a test whose script would hang on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from prism.emulate.checking import CheckReport


@pytest.fixture
def prism_check() -> Callable[..., CheckReport]:
    """A function that checks a script and its arguments, and fails the test unless the calls of its ranks meet."""

    def check_script(*script: str, world_size: int = 8, gpus_per_node: int = 8, timeout_s: float = 600) -> CheckReport:
        from prism.emulate.checking import CheckConfig, check
        from prism.emulate.launch import LaunchConfig

        command = tuple(map(str, script))
        launch = LaunchConfig(script=command, world_size=world_size, gpus_per_node=gpus_per_node, timeout_s=timeout_s)
        report = check(CheckConfig(launch=launch))
        if report.verdict != "clean":
            pytest.fail(f"{' '.join(command)} on {world_size} ranks: {report.describe()}", pytrace=False)
        return report

    return check_script
