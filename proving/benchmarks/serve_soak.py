"""A long run: `prism watch`, `supervise` and `evaluate` write, browsers and programs read, a checker counts every tile.

    python proving/benchmarks/serve_soak.py --minutes 10
    python proving/benchmarks/serve_soak.py --minutes 1440 --folder soak       a day; the same again goes on after a
    stop

The flows of a scenario with a slow GPU are replayed as if they happened now, without end: `prism watch` tells of the
finding and of its end. `prism supervise` keeps a small trainer going that fails now and then, run after run, and
`prism evaluate --demo` scores small models again and again. Clients are tabs of one Chromium, each on one of the pages,
and programs that ask the API. A report is broken and mended besides.

A second reader, which shares no code with Prism, counts from the files what every tile must say, several times a
second. A tile is wrong where a page or the API says something that was true at no moment of the last seconds: outside
of what the files said then. Memory of the service is written down every 15 seconds; at the end stand the tiles
compared, those that were wrong, how long changes took to be told, and the slope of memory over the second half.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from machine import describe_machine
from serve import Service, run_service
from serve_writers import Writer, run_writers

SETTLED_S = 5.0  # a file that changed within two seconds may still be shown as before; a look and an answer take time
PAGES = ("/", "/live", "/failures", "/evaluation", "/history", "/reports", "/job?key=watch~job-1")
# What the tiles of pages are called, and what the second reader calls them.
TILES = {
    **{(page, label): name for page in ("/", "/live") for label, name in
       (("jobs", "jobs"), ("open findings", "open_findings"), ("GPU s lost to them", "lost_gpu_s"))},
    ("/failures", "supervised runs"): "runs", ("/failures", "failures met"): "failures",
}  # fmt: skip


def count_tiles(folder: Path) -> dict[str, float]:
    """What the tiles must say, from the files alone."""
    watch = json.loads((folder / "watch/state.json").read_text())
    told = [f for f in watch["findings"] if f["told_cost"] is not None]
    opened = [f for f in told if not f["resolved"]]
    until = max([j["last_seen_ns"] for j in watch["jobs"].values()] + [watch["looked_until_ns"] or 0])
    blamed = {f["job"] for f in opened}
    jobs = [name for name, job in watch["jobs"].items() if job["last_seen_ns"] >= until or name in blamed]
    runs = [json.loads(path.read_text())["state"] for path in sorted((folder / "runs").glob("*/state.json"))]
    steps = sum(path.read_bytes().count(b"\n") for path in (folder / "runs").glob("*/attempts/*/steps.jsonl"))
    progress = [json.loads(p.read_text()) for p in sorted((folder / "evaluations").glob("*/progress.json"))]
    return {
        "jobs": len(jobs) + len(runs), "open_findings": len(opened), "lost_gpu_s": sum(f["cost"] for f in opened),
        "resolved": len(told) - len(opened), "runs": len(runs), "failures": sum(len(r["failures"]) for r in runs),
        "steps": steps, "evaluations": len(progress), "trials_done": sum(p["trials"]["done"] for p in progress),
        "trials_failed": sum(p["trials"]["failed"] for p in progress),
    }  # fmt: skip


def can_count(folder: Path) -> bool:
    """Whether every command has written something."""
    try:
        return bool(count_tiles(folder)["runs"])
    except (OSError, ValueError, KeyError):
        return False


def read_api(service: Service) -> dict[str, float]:
    """What the API says."""
    cluster, live, failures = ask(service, "cluster"), ask(service, "live"), ask(service, "failures")
    evaluations = ask(service, "evaluations")["evaluations"]
    runs = [ask(service, f"run?key={run['key']}") for run in failures["runs"][:20]]
    said = {
        "jobs": cluster["counts"]["jobs"], "open_findings": cluster["counts"]["open_findings"],
        "lost_gpu_s": cluster["counts"]["lost_gpu_seconds"], "resolved": len(cluster["resolved"]),
        "live.jobs": live["counts"]["jobs"], "live.open_findings": live["counts"]["open_findings"],
        "runs": len(failures["runs"]), "failures": sum(run["num_failures"] for run in failures["runs"]),
        "evaluations": len(evaluations), "trials_done": sum(e["done"] for e in evaluations),
        "trials_failed": sum(e["failed"] for e in evaluations),
    }  # fmt: skip
    if len(runs) == len(failures["runs"]):
        said["steps"] = sum(len(run["losses"]) + run["losses_left_out"] for run in runs)
    return said


def ask(service: Service, path: str) -> Any:
    """One document."""
    with urlopen(f"http://127.0.0.1:{service.port}/api/{path}", timeout=120) as answer:
        return json.loads(answer.read())


@dataclass
class Truth:
    """What the files said at every moment of the last minutes."""

    folder: Path
    stop: threading.Event
    moments: deque[tuple[float, dict[str, float]]] = field(default_factory=lambda: deque(maxlen=6_000))

    def watch(self) -> None:
        """Count again and again; a file that is being replaced is read the next time."""
        while not self.stop.wait(0.15):
            with contextlib.suppress(OSError, ValueError, KeyError):
                at = time.monotonic()
                self.moments.append((at, count_tiles(self.folder)))

    def bounds(self, name: str, begin: float, end: float) -> tuple[float, float] | None:
        """The least and the most that the files said between two moments; None where they were not read then."""
        found = [values[name] for at, values in list(self.moments) if begin - SETTLED_S <= at <= end]
        return (min(found), max(found)) if len(found) >= 3 else None


@dataclass
class Checked:
    """What the checker found; kept in a file, so that a later run goes on."""

    path: Path
    minutes: float = 0.0
    num_tiles: int = 0
    num_in_browser: int = 0
    num_skipped: int = 0  # the machine was too busy to read the files often enough
    answered: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)  # from a change of the steps until the API tells it
    memory_mb: list[float] = field(default_factory=list)  # every 15 s

    @classmethod
    def load(cls, path: Path) -> Checked:
        """Go on from what an earlier run left."""
        return cls(path, **json.loads(path.read_text())) if path.exists() else cls(path)

    def save(self) -> None:
        """Write it down."""
        kept = {name: value for name, value in vars(self).items() if name != "path"}
        self.path.with_suffix(".tmp").write_text(json.dumps(kept))
        self.path.with_suffix(".tmp").replace(self.path)

    def compare(self, truth: Truth, said: dict[str, float], begin: float, where: str) -> None:
        """Every tile against what the files said since a little before the question."""
        end = time.monotonic()
        for name, value in said.items():
            bounds = truth.bounds(name.rpartition(".")[2], begin, end)
            if bounds is None:
                self.num_skipped += 1
                continue
            self.num_tiles += 1
            if not bounds[0] - 0.5 <= value <= bounds[1] + 0.5:
                self.wrong.append(f"{where} {name}: {value} for {bounds[0]} to {bounds[1]}")


def check_api(truth: Truth, service: Service, checked: Checked) -> None:
    """Compare what the API says, and say how long a new step took to be told."""
    seen = 0.0
    while not truth.stop.wait(0.5):
        try:
            begin = time.monotonic()
            said = read_api(service)
        except (OSError, ValueError, KeyError):
            checked.lost += not truth.stop.is_set()
            continue
        checked.compare(truth, said, begin, "api")
        first = next((at for at, values in list(truth.moments) if values["steps"] == said.get("steps")), None)
        if first is not None and said["steps"] != seen:
            seen = said["steps"]
            checked.lags_s.append(round(max(0.0, time.monotonic() - first), 2))


def run_client(truth: Truth, service: Service, number: int, checked: Checked) -> None:
    """A program that reads on."""
    rng = random.Random(number)
    paths = ("version", "overview", "cluster", "live", "failures", "evaluations", "history", "reports", "feed")
    while not truth.stop.wait(rng.uniform(0.5, 1.5)):
        try:
            ask(service, rng.choice(paths))
            checked.answered += 1
        except (OSError, ValueError):
            checked.lost += not truth.stop.is_set()


class Tabs:
    """Tabs of one Chromium, each on a page that the service tells of every change."""

    def __init__(self, browser: Any, service: Service, num: int) -> None:
        from browser import open_page

        self.browser, self.pages = browser, dict[str, str]()
        for number in range(num):
            if number:
                browser.switch_to.new_window("window")
            page = PAGES[number % len(PAGES)]
            open_page(browser, f"http://127.0.0.1:{service.port}{page}")
            self.pages[browser.current_window_handle] = page

    def check(self, truth: Truth, checked: Checked) -> None:
        """Read the tiles of every tab as a person does."""
        for handle, page in self.pages.items():
            if truth.stop.is_set() or not any(page == where for where, _ in TILES):
                continue
            begin = time.monotonic()
            self.browser.switch_to.window(handle)
            read = self.browser.execute_script(_READ_TILES)
            named = {label.partition(",")[0]: value for label, value in read}
            said = {
                name: float(named[label].replace(",", "").replace("\u202f", ""))
                for (where, label), name in TILES.items()
                if where == page and label in named and named[label] != "–"
            }
            checked.compare(truth, said, begin, f"tab {page}")
            checked.num_in_browser += len(said)


_READ_TILES = """
const text = (tile, part) => tile.querySelector(part).textContent;
return [...document.querySelectorAll(".tile")].map((tile) => [text(tile, "span"), text(tile, "b")]);
"""


def soak(work: Path, minutes: float, num_clients: int, num_tabs: int) -> Checked:
    """The whole of it."""
    served = work / "served"
    served.mkdir(parents=True, exist_ok=True)
    (served / "runs").mkdir(exist_ok=True)
    checked, truth = Checked.load(work / "soak.json"), Truth(served, threading.Event())
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "serve"))
    from browser import open_browser

    with (
        run_writers(work, served, truth.stop, ready=lambda: can_count(served)) as writers,
        contextlib.ExitStack() as stack,
    ):
        service = stack.enter_context(run_service(served, "--state", str(work / "state")))
        threads = [
            threading.Thread(target=truth.watch),
            threading.Thread(target=check_api, args=(truth, service, checked)),
        ]
        threads += [threading.Thread(target=run_client, args=(truth, service, n, checked)) for n in range(num_clients)]
        for thread in threads:
            thread.start()
        stack.callback(lambda: [thread.join(130) for thread in threads])
        stack.callback(truth.stop.set)
        tabs = Tabs(stack.enter_context(open_browser()), service, num_tabs) if num_tabs else None
        go_on(checked, truth, (service, tabs, writers), 60 * minutes)
    return checked


def go_on(checked: Checked, truth: Truth, parts: tuple[Service, Tabs | None, list[Writer]], seconds: float) -> None:
    """Read the tabs, write down the memory and keep the commands going, until the time is over."""
    service, tabs, writers = parts
    begin = last = time.monotonic()
    while time.monotonic() - begin < seconds:
        for writer in writers:
            writer.keep_going()
        if tabs is not None:
            tabs.check(truth, checked)
        time.sleep(1.0)
        if time.monotonic() - last >= 15.0:
            checked.minutes += (time.monotonic() - last) / 60
            last = time.monotonic()
            checked.memory_mb.append(round(service.memory_mb("VmRSS"), 1))
            checked.save()
            if len(checked.memory_mb) % 4 == 0:
                print(
                    f"{checked.minutes:.0f} min: {checked.memory_mb[-1]:.0f} MB, {checked.num_tiles:,} tiles compared "
                    f"({checked.num_in_browser:,} in tabs), {len(checked.wrong)} wrong",
                    flush=True,
                )


def report(checked: Checked, served: Path) -> None:
    """What came of it."""
    half = checked.memory_mb[len(checked.memory_mb) // 2 :]
    slope = 240 * float(np.polyfit(range(len(half)), half, 1)[0]) if len(half) > 2 else float("nan")
    lags = np.percentile(checked.lags_s, [50, 95, 100]) if checked.lags_s else [float("nan")] * 3
    print(f"files at the end: {count_tiles(served)}")
    print(
        f"{checked.minutes:.1f} min; {checked.num_tiles:,} tiles compared, {checked.num_in_browser:,} of them in tabs, "
        f"{len(checked.wrong)} wrong, {checked.num_skipped:,} left out (files not read often enough then)"
    )
    print(f"a step is told after {lags[0]:.1f} s at the median, {lags[1]:.1f} s at p95, {lags[2]:.1f} s at most")
    print(f"{checked.answered:,} answers to programs, {checked.lost} lost")
    first, last = checked.memory_mb[0], checked.memory_mb[-1]
    print(f"memory {first:.0f} MB at first, {last:.0f} MB at last, {slope:+.1f} MB an hour over the second half")
    for line in checked.wrong[:20]:
        print("wrong:", line)


def end_all(*_: object) -> None:
    """End the commands and the tabs too, once, however often it is asked for."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main() -> None:
    """Run it."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=4, help="programs that ask the API")
    parser.add_argument("--tabs", type=int, default=20, help="tabs of one Chromium")
    parser.add_argument("--folder", type=Path, help="kept; a run that was stopped goes on in it")
    options = parser.parse_args()
    print(f"machine: {describe_machine()}; {options.clients} programs, {options.tabs} tabs", flush=True)
    signal.signal(signal.SIGTERM, end_all)
    with tempfile.TemporaryDirectory() as name:
        work = (options.folder or Path(name)).resolve()
        checked = soak(work, options.minutes, options.clients, options.tabs)
        report(checked, work / "served")
    sys.exit(1 if checked.wrong or not checked.num_tiles else 0)


if __name__ == "__main__":
    main()
