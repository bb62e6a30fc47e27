"""The flags that every command shares, so that they read and behave alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from prism.cli.terminal import verbosity


def _set_verbose(value: bool) -> bool:
    verbosity.level = 1 if value else verbosity.level
    return value


def _set_quiet(value: bool) -> bool:
    verbosity.level = -1 if value else verbosity.level
    return value


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
VerboseFlag = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more on stderr; show tracebacks.", callback=_set_verbose)
]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress or messages on stderr.", callback=_set_quiet)
]
SkipBadRows = Annotated[
    bool,
    typer.Option("--skip-bad-rows", help="Leave bad rows and unreadable files out, and report how many."),
]
MapOption = Annotated[
    str | None,
    typer.Option(
        "--map",
        help="Which column of the files gives what, as src=ip_src,start=TIMESTAMP_START:us; or a file saved by "
        "`prism flows check --save-map`.",
    ),
]
OutputDir = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder for the files to write; made if missing.")
]


def examples(*commands: str) -> str:
    """An epilog that shows how a command is called."""
    return "\n\n".join(["[bold]Examples[/bold]"] + [f"  {command}" for command in commands])


class RunByDefault(TyperGroup):
    """A group whose first word may be left out: `prism supervise -- COMMAND` means `prism supervise run -- COMMAND`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` in front of what is not a subcommand."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args.insert(0, "run")
        return super().parse_args(ctx, args)
