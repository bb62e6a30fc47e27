"""Write the pictures of README.md and docs/: terminal captures of real commands, as SVG."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from prism.cli import terminal
from prism.cli.main import main

FOLDER = Path(__file__).parents[1] / "docs" / "images"
WIDTH = 110


def capture(command: str, name: str, shown: str | None = None) -> None:
    """Run a command in this process and save what it prints on stdout as docs/images/NAME.svg."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {shown or command}", style="bold"))
    original, terminal.console = terminal.console, lambda *, stderr=False: console
    try:
        main(shlex.split(command)[1:])
    except SystemExit as stop:
        if stop.code:
            sys.exit(f"{command} ended with {stop.code}")
    finally:
        terminal.console = original
    FOLDER.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(FOLDER / f"{name}.svg"), title="prism")


if __name__ == "__main__":
    capture("prism demo --only observe --quiet --output out/demo", "demo", shown="prism demo --only observe")
