"""Thresholds are found in the sources, and groups of them are halved until those that move something are left."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "proving" / "benchmarks"))
from observe_sensitivity import Change, Search, Threshold, _read_file, list_thresholds, search, tabulate, write_page

SOURCE = '''
_SHARE = 0.5  # of all
_PAIR = (2, levels.SHARE_LARGE, 0.25)
_SIZE = 1 << 20
_NAMES = ("dp", "pp")
_TABLE = {"a": 3}
lower = 4


class StageConfig:
    """A config."""

    least: int = 7
    name: str = "x"
'''


def make_thresholds(num: int) -> list[Threshold]:
    return [
        Threshold(file="prism/observe/a.py", name=f"_T{i}", value=1.0, line=i, begin=0, end=1, text="1.0")
        for i in range(num)
    ]


class FakeCopies:
    """A capture moves where one of its thresholds was changed."""

    def __init__(self, movers: dict[str, set[str]]) -> None:
        self.movers, self.runs = movers, 0

    def score(self, folders: list[str], changes: list[Change]) -> dict[str, object]:
        self.runs += 1
        names = {c.threshold.name for c in changes}
        return {f: bool(names & self.movers.get(f, set())) for f in folders}


def run(copies: Any, thresholds: list[Threshold], deadline: float = float("inf")) -> dict[str, Any]:
    state = Search(copies, {"one": False, "two": False}, None, deadline)
    groups = {"up": [[Change(t, t.move(1.2)) for t in thresholds]]}
    search(state, groups, workers=2)
    return {str(row["key"]): row["moves"] for row in tabulate(state, groups)}


def test_numbers_of_constants_tuples_and_configs_are_thresholds_and_tables_and_levels_are_not() -> None:
    found = {t.name: t.text for t in _read_file("prism/observe/a.py", SOURCE)}
    assert found == {"_SHARE": "0.5", "_PAIR[0]": "2", "_PAIR[2]": "0.25", "_SIZE": "1 << 20", "StageConfig.least": "7"}


@pytest.mark.parametrize(("text", "value", "less", "more"), [("0.5", 0.5, "0.4", "0.6"), ("3", 3.0, "2", "4")])
def test_whole_numbers_stay_whole_and_move_by_one_at_least(text: str, value: float, less: str, more: str) -> None:
    threshold = Threshold(file="a", name="_A", value=value, line=1, begin=0, end=1, text=text)
    assert (threshold.move(0.8), threshold.move(1.2)) == (less, more)


def test_halving_finds_those_that_move_something_in_fewer_runs_than_there_are() -> None:
    copies = FakeCopies({"one": {"_T3"}, "two": {"_T3", "_T40"}})
    moves = run(copies, make_thresholds(64))
    assert {key.split(":")[1]: m["up"] for key, m in moves.items() if m["up"]} == {
        "_T3": ["one", "two"],
        "_T40": ["two"],
    }
    assert copies.runs < 32


def test_what_the_time_does_not_allow_is_unknown_and_not_cleared() -> None:
    moves = run(FakeCopies({}), make_thresholds(4), deadline=0.0)
    assert [m["up"] for m in moves.values()] == [None] * 4


def test_the_page_lists_what_moves_first(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"key": "a.py:_A", "value": 0.5, "moves": {"0.8": [], "1.2": None}},
        {"key": "b.py:_B", "value": 3.0, "moves": {"0.8": ["06"], "1.2": []}},
    ]
    write_page(rows, tmp_path / "page.md", ["06"])
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert lines[-2:] == ["| `b.py:_B` | 3 | 06 | - |", "| `a.py:_A` | 0.5 | - | ? |"]


def test_every_threshold_has_a_name_of_its_own() -> None:
    keys = [t.key for t in list_thresholds()]
    assert len(keys) == len(set(keys)) > 50
    assert not any(key.startswith("report/") for key in keys)
