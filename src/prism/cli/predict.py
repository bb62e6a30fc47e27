"""`prism predict`: which part fails next, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism.cli.options import JsonFlag, QuietFlag, VerboseFlag, examples
from prism.cli.terminal import note, show, show_json, table
from prism.errors import BadConfigError

EPILOG = examples(
    "prism predict events.parquet --lives lives.parquet --at 2016-10-01 --horizon-days 90",
    "prism predict faults.json --map serial=node_id,at=event_time:days --at 300days --horizon-days 14 --json",
)


def run_predict(
    events: Annotated[Path, typer.Argument(help="Events of parts: serial, location, at, event (Parquet, CSV, JSON).")],
    at: Annotated[str, typer.Option(help="The moment asked about: 2016-10-01, or 300days where times are numbers.")],
    lives: Annotated[
        Path | None, typer.Option(help="Stays of parts: serial, location, installed, removed (empty: still there).")
    ] = None,
    horizon_days: Annotated[float, typer.Option(help="How far ahead.", min=0.1, max=3_650)] = 90.0,
    map: Annotated[
        str | None, typer.Option(help="Names of your columns: serial=node_id,at=event_time:days (ns us ms s h days).")
    ] = None,
    most: Annotated[int, typer.Option(help="Rows to show; --json gives all.", min=1)] = 20,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Give every part in place at a moment its risk of an event, from what was known before that moment."""
    from prism.predict import PredictConfig, predict, read_history
    from prism.predict.history import parse_time

    history = read_history(events, lives, _parse_map(map))
    found = predict(history, parse_time(at), PredictConfig(horizon_days=horizon_days))
    for line in found.notes:
        note(f"note: {line}")
    if json:
        show_json(found.to_json())
        return
    rows = [[r.id, f"{r.risk:.2%}", "; ".join(r.reasons)] for r in found.risks[:most]]
    show(table(f"Riskiest of {len(found.risks):,} parts, next {horizon_days:g} days", ["part", ">risk", "why"], rows))
    sure = "not known" if found.past_auc != found.past_auc else f"{found.past_auc:.2f} (0.5 is chance, 1 is certain)"
    show(f"{found.expected_events:.0f} parts are expected to have an event; by {found.method}, past AUC: {sure}")


def _parse_map(text: str | None) -> dict[str, str]:
    names = {}
    for entry in (text or "").split(","):
        column, found, name = entry.partition("=")
        if entry and not found:
            raise BadConfigError(f"--map: '{entry}' is no assignment; write serial=node_id,at=event_time:days")
        if entry:
            names[column.strip()] = name.strip()
    return names
