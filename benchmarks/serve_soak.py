"""A long run: a watch, a supervised run and an evaluation are written to while clients read, and a checker counts.

    python benchmarks/serve_soak.py --minutes 5 --clients 20
    python benchmarks/serve_soak.py --minutes 1440 --clients 20 --browsers 20      a day, with open browsers

Writers replace and append files as `prism watch`, `supervise` and `evaluate` do, some findings end, runs fail and start
again, and now and then a file is broken and mended. The checker reads the files themselves, without Prism's readers,
counts what every tile of the pages must say, and compares; a tile counts as wrong where the page says something that
was true at no moment between the question and the answer. Memory of the service is printed every minute; at the end
stand the number of tiles compared, those that were wrong, and the slope of memory over the second half of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np

from machine import describe_machine
from serve import Service, run_service

EPOCH_NS = 1_780_000_000 * 10**9
SETTLED_S = 3.5  # a file that changed within the last two seconds may still be shown as before; a look takes a second
KINDS = ("slow_compute", "slow_link", "hang", "contention")


@dataclass
class World:
    """What is written, and when it last was."""

    folder: Path
    changed: float = 0.0
    num_writes: int = 0
    seen: float = 0.0  # the newest change whose telling was timed
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)

    def replace(self, path: str, text: str) -> None:
        """Write a file aside and put it in place."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.tmp")
        aside.write_text(text)
        with self.lock:
            aside.replace(target)
            self.changed, self.num_writes = time.monotonic(), self.num_writes + 1

    def append(self, path: str, line: dict[str, Any]) -> None:
        """One more line."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.lock, target.open("a") as file:
            file.write(json.dumps(line) + "\n")
            self.changed, self.num_writes = time.monotonic(), self.num_writes + 1


def write_watch(world: World, rng: random.Random, turn: int) -> None:
    """The state of a watch over four jobs, and a line for a finding that begins or ends."""
    now = EPOCH_NS + turn * 10**9
    jobs = {
        f"job-{n}": {"endpoints": [f"10.9.{n}.{i}" for i in range(8)], "first_seen_ns": EPOCH_NS, "last_seen_ns": now,
                     "step_s": round(rng.uniform(1, 3), 3)}
        for n in range(4)
    }  # fmt: skip
    findings = [
        {"id": f"finding-{n}", "kind": KINDS[n % 4], "job": f"job-{n % 4}", "culprit_type": "host", "culprit": f"h{n}",
         "start_ns": EPOCH_NS + n * 10**9, "end_ns": now, "cost": 10.0 * (n + 1), "told_cost": 10.0, "sightings": 3,
         "look": turn, "resolved": rng.random() < 0.3}
        for n in range(rng.randrange(6))
    ]  # fmt: skip
    document = {"schema": "prism.watch-state/1", "jobs": jobs, "findings": findings, "looked_until_ns": now}
    world.replace("watch/state.json", json.dumps(document))


def write_run(world: World, rng: random.Random, turn: int) -> None:
    """A supervised run goes on by a step; one in fifty fails and starts again."""
    attempt = 1 + turn // 50
    line = {"kind": "step", "time": 1_780_000_000 + turn, "step": turn, "loss": 2.0 + rng.random()}
    world.append(f"runs/pretrain/attempts/{attempt:04d}/steps.jsonl", line)
    if turn % 10 == 0:
        failures = [{"at_s": 50.0 * n, "reason": "NVLinkError", "category": "infrastructure", "step": 50 * n,
                     "host": f"h{n % 5}"} for n in range(attempt - 1)]  # fmt: skip
        state = {"phase": "running", "outcome": "", "outcome_text": "", "attempt": attempt, "hosts": ["h1", "h2"],
                 "best_step": turn, "saved_steps": [turn], "num_rollbacks": 0, "skip": [], "book": {"records": {}},
                 "failures": failures[-200:]}  # fmt: skip
        world.replace("runs/pretrain/state.json", json.dumps({"schema": "prism.supervise/1", "state": state}))


def write_evaluation(world: World, rng: random.Random, turn: int) -> None:
    """An evaluation goes on; the whole begins anew every 200 turns."""
    done = turn % 200
    trials = {"done": done, "running": rng.randrange(4), "waiting": 200 - done, "failed": rng.randrange(2)}
    progress = {"state": "running", "trials": trials, "gpus_busy": 8, "gpus": 16, "time_left_s": 60.0,
                "updated_ns": EPOCH_NS + turn}  # fmt: skip
    if not (world.folder / "evaluation/trials.jsonl").exists():
        world.replace("evaluation/trials.jsonl", "")
    world.replace("evaluation/progress.json", json.dumps(progress))


def break_and_mend(world: World, rng: random.Random, turn: int) -> None:
    """A report that is broken half of the time."""
    text = json.dumps({"schema": "prism.goodput/1", "gpu_hours": 10.0 + turn, "goodput": 0.5})
    world.replace("goodput.json", text if turn % 2 else text[:-9])


WRITERS: tuple[tuple[Callable[[World, random.Random, int], None], float], ...] = (
    (write_watch, 5.0), (write_run, 5.0), (write_evaluation, 7.0), (break_and_mend, 31.0),
)  # fmt: skip


def run_writer(world: World, write: Callable[[World, random.Random, int], None], every_s: float) -> None:
    """Write again and again, all writers at the same moments, so that there are pauses in which nothing changes."""
    rng, turn = random.Random(every_s), 1
    while not world.stop.is_set():
        write(world, rng, turn)
        turn += 1
        world.stop.wait(every_s - time.time() % every_s)


def count_tiles(folder: Path) -> dict[str, float]:
    """What the pages must say, from the files alone."""
    watch = json.loads((folder / "watch/state.json").read_text())
    run = json.loads((folder / "runs/pretrain/state.json").read_text())["state"]
    trials = json.loads((folder / "evaluation/progress.json").read_text())["trials"]
    opened = [f for f in watch["findings"] if not f["resolved"] and f["told_cost"] is not None]
    steps = sum(len(p.read_text().splitlines()) for p in (folder / "runs/pretrain/attempts").glob("*/steps.jsonl"))
    return {
        "cluster.jobs": len(watch["jobs"]) + 1, "cluster.open_findings": len(opened),
        "cluster.lost_gpu_seconds": sum(f["cost"] for f in opened), "live.open_findings": len(opened),
        "failures.runs": 1, "failures.failures": len(run["failures"]), "failures.step": run["best_step"],
        "run.steps": steps, "evaluation.done": trials["done"], "evaluation.failed": trials["failed"],
        "evaluation.waiting": trials["waiting"], "overview.findings": len(opened),
    }  # fmt: skip


def read_tiles(service: Service) -> dict[str, float]:
    """What the pages say."""
    cluster, live, failures = ask(service, "cluster"), ask(service, "live"), ask(service, "failures")
    evaluation, overview = ask(service, "evaluations")["evaluations"][0], ask(service, "overview")
    run = ask(service, "run?key=runs/pretrain~run")
    return {
        "cluster.jobs": cluster["counts"]["jobs"], "cluster.open_findings": cluster["counts"]["open_findings"],
        "cluster.lost_gpu_seconds": cluster["counts"]["lost_gpu_seconds"],
        "live.open_findings": live["counts"]["open_findings"], "failures.runs": len(failures["runs"]),
        "failures.failures": failures["runs"][0]["num_failures"], "failures.step": failures["runs"][0]["step"],
        "run.steps": len(run["losses"]) + run["losses_left_out"], "evaluation.done": evaluation["done"],
        "evaluation.failed": evaluation["failed"], "evaluation.waiting": evaluation["waiting"],
        "overview.findings": overview["num_findings"],
    }  # fmt: skip


def ask(service: Service, path: str) -> Any:
    """One document."""
    with urlopen(f"http://127.0.0.1:{service.port}/api/{path}", timeout=60) as answer:
        return json.loads(answer.read())


@dataclass
class Checked:
    """What the checker found."""

    num_tiles: int = 0
    num_skipped: int = 0  # the files changed meanwhile
    wrong: list[str] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)  # from a change of the watch's file until the API tells it


def check(world: World, service: Service, checked: Checked) -> None:
    """Compare every tile in a pause of the writers; say how long the newest change took to be told."""
    while not world.stop.wait(0.2):
        with contextlib.suppress(OSError, ValueError, KeyError, HTTPError, IndexError):
            with world.lock:
                changed, expected = world.changed, count_tiles(world.folder)
            said = read_tiles(service)
            with world.lock:
                same = world.changed == changed
            if said == expected and same:
                if changed != world.seen:
                    checked.lags_s.append(time.monotonic() - changed)
                    world.seen = changed
                checked.num_tiles += len(said)
            elif same and time.monotonic() - changed > SETTLED_S:
                checked.num_tiles += len(said)
                checked.wrong += [f"{n}: {said[n]} for {expected[n]}" for n in said if said[n] != expected[n]]
            else:
                checked.num_skipped += 1


def run_client(world: World, service: Service, number: int, counts: dict[str, int]) -> None:
    """Somebody who reads on."""
    rng = random.Random(number)
    paths = ("version", "overview", "cluster", "live", "failures", "evaluations", "history", "reports", "feed")
    while not world.stop.wait(rng.uniform(0.5, 1.5)):
        try:
            ask(service, rng.choice(paths))
            counts["answered"] += 1
        except (OSError, ValueError):
            counts["lost"] += not world.stop.is_set()


@contextlib.contextmanager
def open_browsers(service: Service, num: int) -> Iterator[None]:
    """Real browsers, each on a page of its own, which the service tells of every change."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))
    from browser import open_browser, open_page

    pages = ("/live", "/", "/failures", "/evaluation", "/history")
    with contextlib.ExitStack() as stack:
        for number in range(num):
            browser = stack.enter_context(open_browser())
            open_page(browser, f"http://127.0.0.1:{service.port}{pages[number % len(pages)]}")
        yield


def soak(minutes: float, num_clients: int, num_browsers: int) -> int:
    """The whole of it; 1 where a tile was wrong."""
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name) / "served")
        world.folder.mkdir()
        for write, _ in WRITERS:
            write(world, random.Random(0), 0)
        checked, counts, memory = Checked(), {"answered": 0, "lost": 0}, []
        with run_service(world.folder) as service, open_browsers(service, num_browsers):
            threads = [threading.Thread(target=run_writer, args=(world, *writer)) for writer in WRITERS]
            threads.append(threading.Thread(target=check, args=(world, service, checked)))
            threads += [
                threading.Thread(target=run_client, args=(world, service, number, counts))
                for number in range(num_clients)
            ]
            for thread in threads:
                thread.start()
            end, began = time.monotonic() + 60 * minutes, service.cpu_s()
            try:
                while time.monotonic() < end:
                    time.sleep(min(15.0, max(0.1, end - time.monotonic())))
                    memory.append(service.memory_mb("VmRSS"))
                    if len(memory) % 4 == 0:
                        print(f"{len(memory) // 4} min: {memory[-1]:.0f} MB, {checked.num_tiles:,} tiles compared, "
                              f"{len(checked.wrong)} wrong", flush=True)  # fmt: skip
            finally:
                world.stop.set()
                for thread in threads:
                    thread.join(90)
            used = service.cpu_s() - began
        report(world, checked, counts, memory, used)
    return 1 if checked.wrong or not checked.num_tiles else 0


def report(world: World, checked: Checked, counts: dict[str, int], memory: list[float], used_s: float) -> None:
    """What came of it."""
    half = memory[len(memory) // 2 :]
    slope = 240 * float(np.polyfit(range(len(half)), half, 1)[0]) if len(half) > 2 else float("nan")
    lags = np.percentile(checked.lags_s, [50, 95, 100]) if checked.lags_s else [float("nan")] * 3
    print(f"{world.num_writes:,} writes; {checked.num_tiles:,} tiles compared, {len(checked.wrong)} wrong, "
          f"{checked.num_skipped} looks left out because files changed meanwhile")  # fmt: skip
    print(f"a change is told after {lags[0]:.1f} s at the median, {lags[1]:.1f} s at p95, {lags[2]:.1f} s at most")
    print(f"{counts['answered']:,} answers to clients, {counts['lost']} lost; {used_s:.0f} s of CPU")
    print(
        f"memory {memory[0]:.0f} MB at first, {memory[-1]:.0f} MB at last, {slope:+.1f} MB an hour over the second half"
    )
    for line in checked.wrong[:20]:
        print("wrong:", line)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--browsers", type=int, default=0, help="open Chromium windows besides")
    options = parser.parse_args()
    print(f"machine: {describe_machine()}; {options.clients} clients, {options.browsers} browsers", flush=True)
    sys.exit(soak(options.minutes, options.clients, options.browsers))


if __name__ == "__main__":
    main()
