"""Write docs/cli.md: every command with its options and examples, from the command line's own definitions."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import typer

from prism.cli.main import app

TARGET = Path(__file__).parents[1] / "docs" / "cli.md"
HEADER = """# Commands

Written by `make docs` from the commands themselves; do not edit.

Every command takes `--help`. With `--json` a command prints one JSON document on stdout and nothing else there;
progress and messages go to stderr. Exit codes: 0 done, 2 wrong use or bad input (one line says where and what to do),
1 anything else. `NO_COLOR=1` turns colours off; `prism --install-completion` sets up your shell.
"""


def render() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    sections = [HEADER]
    for path, command in walk("prism", root):
        sections.append(render_command(path, command))
    return "\n".join(sections)


def walk(path: str, command: Any) -> list[tuple[str, Any]]:
    """Every command below `command` that does something, with the words that call it."""
    children = getattr(command, "commands", None)
    if not children:
        return [(path, command)]
    found = [pair for name, child in children.items() for pair in walk(f"{path} {name}", child)]
    return ([(path, command)] if getattr(command, "invoke_without_command", False) else []) + found


def render_command(path: str, command: Any) -> str:
    """One command: what it does, its parameters, its examples."""
    lines = [f"## {path}\n", (command.help or "").strip() + "\n"]
    rows = [row for parameter in command.params if (row := render_parameter(parameter))]
    if rows:
        lines += ["| parameter | meaning |", "|---|---|", *rows, ""]
    examples = [re.sub(r"\[/?[a-z ]+\]", "", line).strip() for line in (command.epilog or "").split("\n\n")[1:]]
    lines += ["```console", *(f"$ {line}" for line in examples), "```", ""]
    return "\n".join(lines)


def render_parameter(parameter: Any) -> str:
    """One row of the table of parameters."""
    if parameter.name == "help":
        return ""
    names = ", ".join(f"`{opt}`" for opt in parameter.opts if opt.startswith("-")) or f"`{parameter.name.upper()}`"
    text = (getattr(parameter, "help", None) or "").strip().replace("|", "\\|")
    default = parameter.default
    shown = f" Default: {default}." if default not in (None, False, ()) and not callable(default) else ""
    return f"| {names} | {text}{shown} |"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == render() else "docs/cli.md is out of date; run: make docs")
    TARGET.write_text(render())
