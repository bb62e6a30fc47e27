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
    from rich.text import Text


@dataclass
class Verbosity:
    """-1 quiet, 0 normal, 1 verbose; set by the shared flags."""

    level: int = 0


verbosity = Verbosity()


def console(*, stderr: bool = False) -> Console:
    """A Rich console on stdout or stderr; what it prints is text, never markup or the name of an emoji."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty())


def heading(text: str) -> Text:
    """A line that stands out on a terminal."""
    from rich.text import Text

    return Text(text, style="bold")


def faint(text: str) -> Text:
    """A line that steps back on a terminal."""
    from rich.text import Text

    return Text(text, style="dim")


def show(*renderables: RenderableType) -> None:
    """Print results for a person on stdout; in a pipe one record a line, cells apart by tabs, nothing cut."""
    out = console()
    for renderable in renderables:
        if out.is_terminal:
            out.print(renderable)
        else:
            out.file.write("".join(f"{line}\n" for line in _plain_lines(renderable)))


def _plain_lines(renderable: Any) -> Iterator[str]:
    """The text of what `show` prints, without a layout."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table

    match renderable:
        case Padding():
            yield from (" " * renderable.left + line for line in _plain_lines(renderable.renderable))
        case Group() | Columns():
            for part in renderable.renderables:
                yield from _plain_lines(part)
        case Table():
            if renderable.title:
                yield str(renderable.title)
            if any(str(column.header) for column in renderable.columns):
                yield "\t".join(str(column.header) for column in renderable.columns).rstrip("\t")
            for cells in zip(*(column.cells for column in renderable.columns), strict=True):
                yield "\t".join(" ".join(str(cell).split()) for cell in cells)
            yield ""
        case _:
            yield from str(renderable).split("\n")


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
    from rich.text import Text

    err.print(Text.assemble("prism: ", ("error:", "red"), f" {line}"), soft_wrap=True)


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
    from rich.text import Text

    out = Table(
        title=None if title is None else Text(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in columns:
        out.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        out.add_row(*(Text(str(cell)) for cell in row))
    return out
