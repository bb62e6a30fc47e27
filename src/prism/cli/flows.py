"""`prism flows`: look at flow records and convert them."""

from __future__ import annotations

import typer

app = typer.Typer(help="Look at flow records and convert them.", no_args_is_help=True)
