"""Is what people are shown and told true while things break? Real commands, a real receiver, a real browser.

    python -m proving.drills.truth_drill [--rounds N] [--seed N] [--no-browser]

`prism serve` watches a folder in which `prism supervise` runs jobs whose ranks are ended by signals, supervisors and
watches are killed, files are damaged and removed, the receiver is stopped, the service itself is killed, and an old
folder is copied in. What is true is known, because the drill did it. Counted are harms: a page that says that nothing
is sick, a job that "runs", or "resolved", while it is not so; a message that is lost, or told twice; and the seconds
from the evidence to the message.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import polars as pl

from proving.drills.truth_ledger import Hook, Ledger, free_port, open_page, seen_by, write_diagnosis

_TOLD_WITHIN_S = 10.0
_PATIENCE_S = 60.0
_TRAINER = """
import os, signal, sys, time
from pathlib import Path
how, steps = sys.argv[1], int(sys.argv[2])
for step in range(1, steps + 1):
    print(f"step {step}/{steps} loss 1.0", flush=True)
    time.sleep(0.15)
    if step == 8 and how != "none" and not Path("met").exists():
        Path("met").touch()
        if how == "exit":
            raise TypeError("unsupported operand")
        os.kill(os.getpid(), getattr(signal, how))
"""


class Drill:
    """One folder, one service, one receiver."""

    def __init__(self, folder: Path, browser: Any, seed: int) -> None:
        self.folder, self.browser, self.random = folder, browser, random.Random(seed)
        self.hook, self.ledger = Hook(), Ledger()
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        (folder / "out").mkdir(parents=True)
        url = f"http://127.0.0.1:{self.hook.server_port}/"
        channel = {"name": "hook", "type": "webhook", "url": url, "least": "info"}
        (folder / "alerts.yaml").write_text(json.dumps({"channels": [channel], "public_url": self.address}))
        (folder / "train.py").write_text(_TRAINER)
        (folder / "once.yaml").write_text("restarts: {max_restarts: 0}\n")
        self.service = self.serve()
        self.number = 0

    # ---- what runs

    def prism(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """A command of Prism in a session of its own, so that killing it leaves its children."""
        log = (self.folder / "commands.log").open("ab")
        with log:
            return subprocess.Popen([sys.executable, "-m", "prism", *words], cwd=cwd or self.folder, stdout=log,
                                    stderr=log, stdin=subprocess.DEVNULL)  # fmt: skip

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the service and wait until it answers."""
        process = self.prism("serve", "out", "--port", str(self.port), "--no-token", "--state", "state", "--alerts",
                             "alerts.yaml")  # fmt: skip
        self.wait("the service", lambda: self.ask("/api/version") is not None)
        return process

    def ask(self, path: str, body: Any = None) -> Any:
        """An answer of the service; None where it gives none."""
        data = None if body is None else json.dumps(body).encode()
        with suppress(URLError, OSError, ValueError):
            request = Request(self.address + path, data, {"X-Prism-Write": "1", "Content-Type": "application/json"})
            with urlopen(request, timeout=10) as answer:
                return json.loads(answer.read())
        return None

    def wait(self, what: str, check: Callable[[], Any], seconds: float = _PATIENCE_S) -> bool:
        """Until it holds; whether it did in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if check():
                return True
            time.sleep(0.1)
        self.ledger.harm(f"not within {seconds:g} s: {what}")
        return False

    # ---- what is true

    @contextmanager
    def event(self, what: str) -> Iterator[int]:
        """Something that the drill does; gives how many messages there were before."""
        self.ledger.events += 1
        print(f"{self.ledger.events:4} {what}", flush=True)
        yield len(self.hook.got)

    def told(self, since: int, status: str, kind: str, word: str, evidence_s: float) -> None:
        """A message must come, in time."""
        if self.wait(f"{status} of {kind} {word}", lambda: self.hook.find(since, status, kind, word)):
            delay = (self.hook.find(since, status, kind, word) or 0.0) - evidence_s
            self.ledger.delays_s.append(delay)
            if delay > _TOLD_WITHIN_S:
                self.ledger.harm(f"{status} of {kind} {word} took {delay:.1f} s")

    def look(self) -> None:
        """Compare the page with what is true."""
        self.ledger.looks += 1
        sick = [name for name, since in list(self.ledger.sick.items()) if time.time() - since > _TOLD_WITHIN_S]
        text = self.read_page()
        if text is None:
            return
        if sick and "nothing is known to be sick" in text:
            self.ledger.harm(f"the page says that nothing is sick, while {sick}")
        jobs = {row["id"]: row for row in (self.ask("/api/jobs") or {"jobs": []})["jobs"]}
        for name in sick:
            if name.startswith("run:") and jobs.get(name[4:], {}).get("health") in ("ok", "done"):
                self.ledger.harm(f"{name} is dead, and its job is shown as {jobs[name[4:]]['health']}")

    def read_page(self) -> str | None:
        """The text of the front page, as a person sees it; None while it cannot be had."""
        if self.browser is None:
            found = self.ask("/api/incidents")
            return None if found is None else ("" if found["now"] else "nothing is known to be sick")
        try:
            return str(self.browser.execute_script("return document.getElementById('page').innerText"))
        except Exception:  # the page may be loading; the next look sees it
            return None

    def check_messages(self) -> None:
        """Nothing is told twice, and nothing resolved that was not told open before."""
        open_: set[str] = set()
        for _, body in self.hook.got:
            if body["status"] == "opened":
                if body["id"] in open_:
                    self.ledger.harm(f"told twice: {body['id']} {body['title']}")
                open_.add(body["id"])
            if body["status"] == "resolved":
                if body["id"] not in open_:
                    self.ledger.harm(f"resolved without having been told: {body['id']} {body['title']}")
                open_.discard(body["id"])

    # ---- what breaks

    def rank_dies(self, how: str) -> None:
        """A rank is ended by a signal; the supervisor starts the job again, and it ends well."""
        self.number += 1
        name, place = f"run{self.number}", self.folder / f"job{self.number}"
        place.mkdir()
        with self.event(f"a rank is ended by {how}") as since:
            limit = ("--config", "../once.yaml") if how == "exit" else ()
            program = (sys.executable, "../train.py", how, "40")
            words = ("supervise", *limit, "--run-dir", f"../out/{name}", "--", *program)
            process = self.prism(*words, cwd=place)
            self.wait("the end of the rank", (place / "met").exists)
            died_s = time.time()
            kind = "run_failed" if how == "exit" else "attempt_ended"
            # A run that ends with its attempt is told as either, as the one look or the next finds it.
            self.told(
                since, "opened", "" if how == "exit" else kind, name, died_s + 2.0
            )  # a supervisor looks every 2 s
        with self.event(f"  and {name} ends") as _:
            process.wait(_PATIENCE_S)
            if how == "exit":
                self.ledger.sick[f"run:{name}"] = time.time()
                time.sleep(1.0)
                self.look()
                found = next(o for o in self.ask("/api/incidents")["now"] if name in o["title"])
                self.ask("/api/incidents", {"id": found["id"], "what": "closed"})
                del self.ledger.sick[f"run:{name}"]
            self.told(since, "resolved", kind, name, time.time())

    def supervisor_dies(self) -> None:
        """kill -9 of a supervisor: nobody knows of the run any more."""
        self.number += 1
        name, place = f"run{self.number}", self.folder / f"job{self.number}"
        place.mkdir()
        with self.event("a supervisor is killed") as since:
            words = ("supervise", "--run-dir", f"../out/{name}", "--", sys.executable, "../train.py", "none", "300")
            process = self.prism(*words, cwd=place)
            self.wait("its state", (self.folder / "out" / name / "state.json").exists)
            time.sleep(2.0)
            process.kill()
            process.wait()
            died_s = self.ledger.sick[f"run:{name}"] = time.time()
            self.told(since, "opened", "run_lost", name, died_s)
            self.look()
        with self.event("  and is started again") as since:
            again = self.prism("supervise", "--run-dir", f"../out/{name}", "--", sys.executable, "../train.py", "none",
                               "300", cwd=place)  # fmt: skip
            del self.ledger.sick[f"run:{name}"]
            again.wait(_PATIENCE_S * 2)
            self.told(since, "resolved", "run_lost", name, time.time())

    def diagnosis_breaks(self, *, down: bool) -> None:
        """A fault is found, its file is damaged, mended, and then shows the fault no more."""
        self.number += 1
        name = f"look{self.number}"
        path = self.folder / "out" / name / "diagnosis.json"
        path.parent.mkdir()
        with self.event(f"a fault is diagnosed{', while the receiver is down' if down else ''}") as since:
            self.hook.down = down
            write_diagnosis(path, name, sick=True)
            told_s = self.ledger.sick[f"look:{name}"] = time.time()
            if down:
                time.sleep(6.0)
                self.hook.down, told_s = False, time.time() + 10.0  # the sender's pauses grow to some seconds
            self.told(since, "opened", "slow_compute", name, told_s)
        with self.event("  its file is damaged") as since:
            good = path.read_text()
            path.write_text(good[: len(good) // 2])
            self.told(since, "opened", "source_lost", name, time.time())
            self.look()
            if self.hook.find(since, "resolved", "slow_compute", name):
                self.ledger.harm(f"{name} is told resolved, while its file is damaged")
        with self.event("  its file is mended") as since:
            path.write_text(good)
            self.told(since, "resolved", "source_lost", name, time.time())
            self.look()
        if self.random.random() < 0.5:
            with self.event("  its file is removed and written again") as since:
                path.unlink()
                self.told(since, "opened", "source_lost", name, time.time())
                self.look()
                path.write_text(good)
                self.told(since, "resolved", "source_lost", name, time.time())
        with self.event("  it is well again") as since:
            del self.ledger.sick[f"look:{name}"]
            write_diagnosis(path, name, sick=False)
            self.told(since, "resolved", "slow_compute", name, time.time())

    def watch_dies(self, how: int) -> None:
        """A watch is killed or stopped, and started again."""
        self.number += 1
        name = f"watch{self.number}"
        source, state = self.folder / f"flows{self.number}", self.folder / "out" / name
        source.mkdir()
        words = ("watch", str(source), "--state", str(state), "--every", "1")
        process = self.prism(*words)
        self.wait("its state", (state / "state.json").exists)
        time.sleep(1.5)
        with self.event("a watch is killed") as since:
            process.send_signal(how)
            process.wait()
            died_s = self.ledger.sick[f"watch:{name}"] = time.time()
            self.told(since, "opened", "watch_lost", name, died_s)
            self.look()
        with self.event("  and started again") as since:
            again = self.prism(*words)
            del self.ledger.sick[f"watch:{name}"]
            self.wait("its lock", lambda: f"process {again.pid} " in (state / "lock").read_text())
            self.told(since, "resolved", "watch_lost", name, time.time())
            again.terminate()
            again.wait()
            shutil.rmtree(state)

    def service_dies(self) -> None:
        """kill -9 of the service right after a fault; the next one tells it, once."""
        self.number += 1
        name = f"look{self.number}"
        path = self.folder / "out" / name / "diagnosis.json"
        path.parent.mkdir()
        with self.event("a fault, and the service is killed at once") as since:
            write_diagnosis(path, name, sick=True)
            time.sleep(self.random.uniform(0.0, 1.5))
            self.service.kill()
            self.service.wait()
            self.service = self.serve()
            self.told(since, "opened", "slow_compute", name, time.time())
        with self.event("  it is well again") as since:
            write_diagnosis(path, name, sick=False)
            self.told(since, "resolved", "slow_compute", name, time.time())

    def old_folder_comes(self) -> None:
        """A folder of last year is copied in: it calls nobody."""
        self.number += 1
        name = f"old{self.number}"
        path = self.folder / "out" / name / "diagnosis.json"
        path.parent.mkdir()
        with self.event("a folder of last year is copied in") as since:
            write_diagnosis(path, name, sick=True, age_s=400 * 86_400.0)
            time.sleep(3.0)
            if any(name in json.dumps(body) for _, body in self.hook.got[since:]):
                self.ledger.harm(f"{name} is of last year, and people were told")

    def replay(self) -> None:
        """A watch of a minute of made traffic, as it happens: a GPU is at fault from its 20th to its 45th second."""
        source, state, made = self.folder / "live", self.folder / "out" / "live", self.folder / "made"
        source.mkdir()
        self.prism("scenario", "slow-gpu-64", "--output", str(made), "--quiet").wait()
        flows, fault = (
            pl.read_parquet(made / "flows.parquet"),
            json.loads((made / "truth.json").read_text())["faults"][0],
        )
        host, first_ns = fault["accepted"][0]["id"], int(flows["start_ns"].min())  # type: ignore[arg-type]
        watch = self.prism("watch", str(source), "--topology", str(made / "topology.csv"), "--state", str(state),
                           "--every", "2")  # fmt: skip
        self.wait("the watch", (state / "lock").exists)
        time.sleep(3.0)
        begin_ns = time.time_ns()
        shift = begin_ns - first_ns
        flows = flows.with_columns(pl.col("start_ns", "end_ns") + shift)
        onset_s, end_s = ((fault[name] + shift) / 1e9 for name in ("start_ns", "end_ns"))
        with self.event(f"a GPU of {host} is slow, in a minute that is replayed") as since:
            for second in range(61):
                after, until = begin_ns + (second - 1) * 10**9, begin_ns + second * 10**9
                time.sleep(max(0.0, until / 1e9 - time.time()))
                part = flows.filter((pl.col("end_ns") >= after) & (pl.col("end_ns") < until))
                part.write_parquet(source / f".{second:03}.parquet")
                (source / f".{second:03}.parquet").rename(source / f"{second:03}.parquet")
            self.wait("what the watch finds", lambda: seen_by(state) is not None)
            seen_s = seen_by(state) or time.time()
            self.told(since, "opened", "slow_compute", host, seen_s)
            told_s = self.hook.find(since, "opened", "slow_compute", host) or 0.0
            print(f"     told {told_s - onset_s:.1f} s after its onset, which the watch needs most of", flush=True)
            over_s = self.hook.find(since, "resolved", "slow_compute", host)
            if over_s is not None and over_s < end_s:
                self.ledger.harm(f"resolved {end_s - over_s:.0f} s before the slow GPU was well")
            self.look()
        with self.event("  and its watch is stopped on request") as since:
            watch.terminate()
            watch.wait()
            self.told(since, "opened", "watch_lost", "live", time.time())

    def close(self) -> None:
        """Stop what runs."""
        self.service.terminate()
        self.service.wait(30)
        self.hook.shutdown()
        self.hook.server_close()


def run(folder: Path, rounds: int, seed: int, browser: Any) -> Ledger:
    """A minute that is replayed, then so many rounds of everything, in an order of the seed."""
    drill = Drill(folder, browser, seed)
    if browser is not None:
        browser.get(drill.address + "/")
    try:
        drill.replay()
        for _ in range(rounds):
            todo: list[Callable[[], None]] = [
                *(lambda how=how: drill.rank_dies(how) for how in ("SIGKILL", "SIGSEGV", "SIGABRT", "exit")),
                drill.supervisor_dies,
                lambda: drill.diagnosis_breaks(down=False),
                lambda: drill.diagnosis_breaks(down=True),
                lambda: drill.watch_dies(signal.SIGKILL),
                drill.service_dies,
                drill.old_folder_comes,
            ]
            drill.random.shuffle(todo)
            for one in todo:
                one()
                drill.look()
        drill.check_messages()
    finally:
        drill.close()
    return drill.ledger


def main() -> int:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-browser", action="store_true")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="truth-drill-"))
    with open_page(not asked.no_browser) as browser:
        ledger = run(folder / "drill", asked.rounds, asked.seed, browser)
    delays = sorted(ledger.delays_s)
    middle, worst = (delays[len(delays) // 2], delays[-1]) if delays else (0.0, 0.0)
    shown = "the page in chromium" if not asked.no_browser else "the API"
    print(f"{ledger.events} events, {ledger.looks} looks at {shown}, {len(delays)} messages awaited: "
          f"{len(ledger.harms)} harms; told after {middle:.1f} s (median), {worst:.1f} s (worst); load "
          f"{os.getloadavg()[0]:.1f}")  # fmt: skip
    for harm in ledger.harms:
        print(f"  {harm}")
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if ledger.harms else 0


if __name__ == "__main__":
    raise SystemExit(main())
