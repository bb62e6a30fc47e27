"""One name of an option means one thing in all commands; what was once written is still read."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from prism.cli.main import app
from prism.cli.options import _FORMER_NAMES, put_todays_names

ROOT: Any = typer.main.get_command(app)
DICTIONARY = Path(__file__).with_name("options.toml")


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        where = f"{path} {name}".strip()
        yield from commands(command, where) if hasattr(command, "commands") else [(where, command)]


def used() -> dict[str, dict[str, list[str]]]:
    """Every long option, whether it takes a value, and the commands that have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, command in commands(ROOT):
        for option in command.params:
            for name in getattr(option, "opts", ()):
                if name.startswith("--"):
                    kind = "flag" if option.is_flag else "value"
                    found.setdefault(name, {}).setdefault(kind, []).append(path)
    return found


def test_every_option_is_in_the_dictionary_with_the_commands_that_have_it() -> None:
    """A command that takes a name must mean by it what the dictionary says; add it there once it does."""
    known = tomllib.loads(DICTIONARY.read_text())
    rows = {name: sorted(path for paths in kinds.values() for path in paths) for name, kinds in used().items()}
    # the four of every command
    shared = {"--json", "--verbose", "--quiet", "--help"}
    rows = {name: paths for name, paths in rows.items() if name not in shared}
    assert {name: sorted(row["commands"]) for name, row in known.items()} == rows
    assert all(row["means"].strip() for row in known.values())


def test_a_name_is_a_flag_everywhere_or_takes_a_value_everywhere() -> None:
    assert {name: kinds for name, kinds in used().items() if len(kinds) > 1} == {}


def test_no_flag_shows_a_type() -> None:
    shown = [
        f"{path} {option.opts[0]}"
        for path, command in commands(ROOT)
        for option in command.params
        if getattr(option, "is_flag", False) and option.metavar != ""
    ]
    assert shown == []


@pytest.mark.parametrize("path", _FORMER_NAMES)
def test_former_names_are_read_as_todays_and_not_shown(path: str) -> None:
    command = dict(commands(ROOT))[path]
    names = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for former, today in _FORMER_NAMES[path].items():
        assert today in names and former not in names
        written = [former, f"{former}=a=b", "a=b", "--", former]
        assert put_todays_names(written, _FORMER_NAMES[path]) == [today, f"{today}=a=b", "a=b", "--", former]


def test_a_former_name_works_on_the_command_line() -> None:
    shown = CliRunner().invoke(
        app, ["predict", "replay", "none.csv", "--from", "2026-01-02", "--to=2026-01-01", "--job-nodes", "1"]
    )
    assert "none.csv" in str(shown.exception) and "No such option" not in shown.output
