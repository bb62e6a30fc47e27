"""`prism demo`: the tour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from prism.cli.diagnose import show_diagnosis, write_diagnosis
from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import faint, heading, note, progress, show, show_json, table

EPILOG = examples(
    "prism demo",
    "prism demo --only observe",
    "prism demo --output /tmp/tour --no-serve",
    "prism demo --only observe --scenario slow-gpu-64",
)
PARTS = ("observe", "emulate", "supervise", "explain", "investigate", "evaluate", "characterize")


def run_demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files to write.")] = Path("prism-demo"),
    only: Annotated[
        list[str] | None, typer.Option(help=f"Part to show: {', '.join(PARTS)}; may be given again.")
    ] = None,
    scenario: Annotated[str, typer.Option(help="Any scenario that `prism scenario --list` names.")] = "demo-512",
    serve: Annotated[bool | None, typer.Option(help="Leave the dashboard open; by default in a terminal only.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the dashboard; a free one if not given.", min=1, max=65535)
    ] = None,
    json: JsonFlag = False,
) -> None:
    """The tour: a cluster diagnosed, a GPT emulated, a job recovered, explained and evaluated, and the dashboard."""
    from threading import Event

    from prism.lab.tour.lanes import running
    from prism.lab.tour.parts import list_parts, prepare

    chosen = _choose(only)
    output.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {"schema": "prism.demo/1", "output": str(output)}
    rest = [part for part in list_parts(output) if part.name in chosen]
    if rest:
        prepare(output)
    observed = Event()
    with running(rest, output, observed) as begun:
        if "observe" in chosen:
            told |= _observe(output, scenario, json)
        observed.set()
        told["parts"] = []
        for part in rest:
            if not json:
                show("", heading(part.title), faint(f"prism {shorten(part.words)}"))
            with progress(part.name):
                stop = begun[part.name].result()
            told["parts"].append(
                {"part": part.name, "seconds": round(stop.seconds, 1), "right": stop.right, "lines": stop.lines}
            )
            if not json:
                show("\n".join(f"  {line}" for line in stop.lines))
    told["screenshots"] = _show_dashboard(output, port, serve, json) if only is None else []
    judged = [told["observed_right"]] if "observe" in chosen else []
    judged += [part["right"] for part in told["parts"]]
    note(f"{sum(judged)} of {len(judged)} parts found what was planted")
    if json:
        show_json(told)


def shorten(words: tuple[str, ...]) -> str:
    """A command as a person would read it: files by their names."""
    return " ".join(Path(word).name if "/" in word else word for word in words)


def _choose(only: list[str] | None) -> list[str]:
    from prism.errors import BadConfigError

    for name in only or ():
        if name not in PARTS:
            raise BadConfigError(f"--only is '{name}', expected one of {', '.join(PARTS)}")
    chosen = list(only or PARTS)
    # A part that reads the files of another part needs that part.
    return ["supervise", *chosen] if {"explain", "evaluate"} & set(chosen) and "supervise" not in chosen else chosen


def _observe(output: Path, scenario: str, json: bool) -> dict[str, Any]:
    from prism.lab.scenarios import load_scenario, make_scenario, write_scenario
    from prism.lab.tour.planted import match_faults
    from prism.observe import diagnose

    with progress("making the cluster's traffic"):
        made = make_scenario(load_scenario(scenario), 0)
        write_scenario(made, output / "cluster")
    with progress("diagnosing it"):
        diagnosis = diagnose(made.flows, made.topology)
        write_diagnosis(diagnosis, output / "observe")
    planted = match_faults(made, diagnosis)
    if not json:
        jobs = made.truth["jobs"]
        show(
            f"A cluster of {sum(j['gpus'] for j in jobs):,} GPUs and {len(jobs)} tenants, "
            f"{made.flows.height:,} flow records. Planted, unknown to the diagnosis:"
        )
        show(table(None, ("what", "job", "culprit", ">GPU s lost"), [fault.cells() for fault in planted]))
        show("Found, from the flows alone:\n")
        show_diagnosis(diagnosis)
        show(*(fault.judge() for fault in planted))
        note(f"open {output}/observe/report.html, or {output}/observe/timeline.perfetto-trace in ui.perfetto.dev")
    right = all(fault.finding is not None for fault in planted)
    found = diagnosis.to_json()["findings"]
    return {"planted": made.truth["faults"], "found": found, "observed_right": right}


def _show_dashboard(output: Path, port: int | None, serve: bool | None, json: bool) -> list[str]:
    """Take pictures of every page; on a terminal the dashboard then stays open."""
    import sys
    import webbrowser

    from prism.lab.tour.dashboard import serving, take_screenshots

    stays = sys.stdout.isatty() and not json if serve is None else serve
    with serving(output, port) as address:
        with progress("photographing the dashboard"):
            pictures = take_screenshots(address, output / "screenshots")
        note(f"dashboard: prism serve {output}" + (f"; pictures in {output}/screenshots" if pictures else ""))
        if stays:
            note(f"open at {address}; Ctrl-C ends it")
            webbrowser.open(address)
            _wait_for_interrupt()
    return [str(path) for path in pictures]


def _wait_for_interrupt() -> None:
    import signal

    try:
        signal.pause()
    except KeyboardInterrupt:
        return
