"""Output: results to stdout, everything else to stderr, and progress only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


@dataclass
class Verbosity:
    """-1 quiet, 0 normal, 1 verbose; set by the shared flags."""

    level: int = 0


verbosity = Verbosity()


def console(*, stderr: bool = False) -> Console:
    """A Rich console on stdout or stderr; without a terminal it neither colours nor wraps at 80 columns."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 120
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def show(*renderables: RenderableType) -> None:
    """Print results for a person on stdout."""
    out = console()
    for renderable in renderables:
        out.print(renderable)


def show_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, allow_nan=False, default=str) + "\n")


def note(message: str) -> None:
    """A message on stderr, silent under --quiet."""
    if verbosity.level >= 0:
        sys.stderr.write(message + "\n")


def fail(message: str) -> None:
    """Print the one line of an error."""
    line = " ".join(message.split())
    err = console(stderr=True)
    err.print(
        f"prism: [red]error:[/red] {_escape(line)}" if err.is_terminal else f"prism: error: {_escape(line)}",
        soft_wrap=True,
    )


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Any]:
    """A progress bar on stderr; yields `advance(amount)`. Draws nothing when stderr is not a terminal."""
    if verbosity.level < 0 or not sys.stderr.isatty():
        yield lambda amount=1: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount=1: bar.advance(task, amount)


def table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """A compact table that fits a terminal; columns whose name starts with '>' are right-aligned."""
    from rich import box
    from rich.table import Table

    out = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        out.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        out.add_row(*(_escape(str(cell)) for cell in row))
    return out
