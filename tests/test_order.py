"""The order in which the suite hands out its files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def conftest() -> Any:
    """The settings of this folder; other folders have modules of the same name."""
    spec = importlib.util.spec_from_file_location("suite_settings", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_that_are_begun_first_exist(conftest: Any) -> None:
    assert [name for name in conftest.LONG_FILES if not (conftest.ROOT / "tests" / name).is_file()] == []


def test_long_files_come_first_and_tests_of_a_file_stay_in_order(conftest: Any) -> None:
    folder = conftest.ROOT / "tests"
    long = folder / conftest.LONG_FILES[1]
    paths = (folder / "a.py", long, folder / "a.py", long, folder / conftest.LONG_FILES[0])
    items = [SimpleNamespace(path=path, name=str(number)) for number, path in enumerate(paths, 1)]
    conftest.pytest_collection_modifyitems(items)
    assert [item.name for item in items] == ["5", "2", "4", "1", "3"]
