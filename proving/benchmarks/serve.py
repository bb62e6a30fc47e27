"""The dashboard under load: first picture and zoom of a job with a million spans, then 200 clients.

    python proving/benchmarks/serve.py              all of it
    python proving/benchmarks/serve.py picture      first picture and zoom only
    python proving/benchmarks/serve.py clients      200 clients at 5 requests a second each
    python proving/benchmarks/serve.py picture --spans 10000000

The peer for a window is what a plain dashboard does: filter the table of spans and send all that the window holds.
Half of what clients ask for are windows and spans that nobody asked for before, so that no answer is found ready; the
rest are the documents that an open page asks for again. They take what Chromium takes (gzip, zstd) and send the tag of
what they have, as the pages do. Times count from when a request was due, not from when it was sent. The load generator
runs on the same cores as the service; its own CPU time is printed beside the service's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import polars as pl

from machine import describe_machine
from prism.records import SPANS
from prism.records.spans import SPAN_KINDS

NUM_RANKS = 128
NUM_STEPS = 60
START_NS = 1_780_000_000 * 10**9
RUN_NS = 300 * 10**9
KEY = "big~job-1"
HEAD = b"Host: 127.0.0.1\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n"
PROGRAM = "import typer; from prism.cli.serve import run_serve; typer.run(run_serve)"


@dataclass(frozen=True)
class Service:
    """The service under test."""

    port: int
    pid: int

    def processes(self) -> list[int]:
        """The service and its workers."""
        found = [task.joinpath("children").read_text().split() for task in Path(f"/proc/{self.pid}/task").iterdir()]
        return [self.pid, *(int(child) for children in found for child in children)]

    def memory_mb(self, field: str = "VmHWM") -> float:
        """Memory that all hold, or held at most."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.processes()]
        return sum(int(text.split(f"{field}:")[1].split()[0]) for text in texts) / 1024

    def cpu_s(self) -> float:
        """CPU time that all have used."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.processes()]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def make_job(folder: Path, num_spans: int = 1_000_000) -> pl.DataFrame:
    """A diagnosis of one job of so many spans on 128 ranks, in four lanes each."""
    rng = np.random.default_rng(0)
    per_lane = num_spans // NUM_RANKS // 4
    parts = []
    for rank in range(NUM_RANKS):
        for lane, fill in (("compute", 0.9), ("dp", 0.3), ("pp", 0.2), ("tp", 0.4)):
            cuts = np.sort(rng.integers(0, RUN_NS, per_lane))
            lengths = (np.diff(cuts, append=RUN_NS) * fill).astype(np.int64)
            parts.append(
                pl.DataFrame({"start_ns": START_NS + cuts, "end_ns": START_NS + cuts + lengths}).with_columns(
                    rank=pl.lit(rank, pl.Int32), lane=pl.lit(lane), kind=pl.lit(lane, pl.Enum(SPAN_KINDS))
                )
            )
    spans = pl.concat(parts).with_columns(job=pl.lit("job-1"), name=pl.col("lane"), bytes=pl.col("end_ns") % 10**6)
    spans = SPANS.conform(spans, "spans")
    folder.mkdir(parents=True)
    spans.write_parquet(folder / "timeline.parquet")
    length = RUN_NS // NUM_STEPS
    names = [f"10.0.{rank // 8}.{rank % 8 + 1}" for rank in range(NUM_RANKS)]
    job = {
        "id": "job-1", "endpoints": names, "hosts": [f"node-{i:03d}" for i in range(NUM_RANKS // 8)],
        "layout": {"dp": 32, "pp": 4, "tp": 1, "cp": 1, "ep": 1}, "pairs": [], "groups": [],
        "stages": {name: rank // 32 for rank, name in enumerate(names)},
        "steps": [
            {"index": i, "start_ns": START_NS + i * length, "end_ns": START_NS + (i + 1) * length}
            for i in range(NUM_STEPS)
        ],
    }  # fmt: skip
    finding = {
        "kind": "slow_compute", "job": "job-1", "culprit": {"type": "host", "id": "node-003"}, "score": 0.9,
        "start_ns": START_NS + RUN_NS // 3, "end_ns": START_NS + RUN_NS // 2, "lost_gpu_seconds": 100.0,
        "evidence": "made",
    }  # fmt: skip
    document = {"schema": "prism.diagnosis/1", "jobs": [job], "findings": [finding], "notes": []}
    (folder / "diagnosis.json").write_text(json.dumps(document))
    return spans


@contextmanager
def run_service(folder: Path, *options: str) -> Iterator[Service]:
    """Start `prism serve`, and stop it."""
    command = [sys.executable, "-c", PROGRAM, str(folder), "--port", "0", "--no-token", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r":(\d+)/", process.stderr.readline())
            assert found
            service = Service(port=int(found[1]), pid=process.pid)
            while True:
                try:
                    get(service, "/healthz")
                    break
                except OSError:
                    time.sleep(0.05)
            time.sleep(3.0)  # compiled loops are loaded from their cache at start, as on a service that has been up
            yield service
        finally:
            process.terminate()


def get(service: Service, path: str) -> bytes:
    """One answer."""
    with urlopen(f"http://127.0.0.1:{service.port}{path}") as answer:
        body: bytes = answer.read()
        return body


def draw_window(rng: random.Random) -> tuple[int, int, int]:
    """A window at a random zoom, from minutes to microseconds, and a first row."""
    length = int(RUN_NS * 10 ** rng.uniform(-7, 0))
    start = rng.randrange(0, RUN_NS - length + 1)
    return start, start + length, rng.randrange(0, NUM_RANKS - 64)


def window_path(rng: random.Random) -> str:
    """The request for such a window, as a screen of 1,200 by 64 rows asks for it."""
    start, end, row = draw_window(rng)
    return f"/api/timeline?key={KEY}&from_ns={start}&to_ns={end}&width=1200&num_rows=64&first_row={row}"


def measure_pictures(service: Service, spans: pl.DataFrame) -> None:
    """First picture and zooms over HTTP, and in a browser where there is one."""
    start = time.perf_counter()
    body = get(service, f"/api/timeline?key={KEY}&width=1200&num_rows=128")
    print(f"first picture, index not built yet: {time.perf_counter() - start:7.3f} s  ({len(body) / 1e3:,.0f} kB)")
    rng = random.Random(1)
    took, sizes, before = [], [], service.cpu_s()
    for _ in range(300):
        path = window_path(rng)
        start = time.perf_counter()
        sizes.append(len(get(service, path)))
        took.append(1e3 * (time.perf_counter() - start))
    cpu = 1e3 * (service.cpu_s() - before) / len(took)
    show("zoom, 300 windows from minutes to microseconds", took)
    print(f"  {cpu:.2f} ms of CPU each, {np.mean(sizes) / 1e3:,.0f} kB each on average")
    measure_peer(spans, float(np.median(took)), max(took), float(np.mean(sizes)))
    measure_browser(service)


def measure_peer(spans: pl.DataFrame, ours_ms: float, ours_worst_ms: float, ours_bytes: float) -> None:
    """The same windows by filtering the table and sending what is found."""
    rng = random.Random(1)
    took, sizes = [], []
    for _ in range(30):
        begin, end, row = draw_window(rng)
        start = time.perf_counter()
        inside = spans.filter(
            (pl.col("start_ns") < START_NS + end)
            & (pl.col("end_ns") > START_NS + begin)
            & pl.col("rank").is_between(row, row + 63)
        )
        sizes.append(len(inside.select("rank", "lane", "kind", "name", "start_ns", "end_ns").write_json()))
        took.append(1e3 * (time.perf_counter() - start))
    show("peer: filter the table, send every span (30 of the same windows, without HTTP)", took)
    print(f"  ours, with HTTP, takes {ours_ms / np.median(took):.2f} of the peer's time at the median, ", end="")
    print(f"{ours_worst_ms / np.max(took):.3f} at the worst, and sends {ours_bytes / np.mean(sizes):.4f} of the bytes")


def measure_browser(service: Service) -> None:
    """From opening the page to the first picture, and from a key to the next, in Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        print("in a browser: no chromium here")
        return
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service as Driver

    options = Options()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1440,1000",
    ):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Driver(driver))
    browser.set_script_timeout(240)
    try:
        firsts = []
        for _ in range(3):
            browser.get("about:blank")
            browser.get(f"http://127.0.0.1:{service.port}/job?key={KEY}")
            firsts.append(browser.execute_async_script(_FIRST_PICTURE))
        print(
            "in Chromium: first picture after opening the page "
            + ", ".join(f"{ms / 1e3:.2f} s" for ms in firsts)
            + " (the first with nothing cached)"
        )
        time.sleep(2.0)
        took = browser.execute_async_script(_ZOOM)
        show("in Chromium: from a key to the picture, 24 zooms in and out", took)
    finally:
        browser.quit()


_FIRST_PICTURE = """
const done = arguments[arguments.length - 1];
const look = () => {
  const node = document.querySelector(".timeline");
  if (node && node.dataset.ready) done(performance.now()); else requestAnimationFrame(look);
};
look();
"""
_ZOOM = """
const done = arguments[arguments.length - 1];
const node = document.querySelector(".timeline"), canvas = node.querySelector("canvas"), took = [];
const keys = [..."wwwwwwwwwwww", ..."ssssssssssss"];
const next = () => {
  if (!keys.length) return done(took);
  const ready = node.dataset.ready, start = performance.now();
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: keys.shift(), bubbles: true, cancelable: true }));
  const painted = () => { took.push(performance.now() - start); setTimeout(next, 250); };
  const look = () => requestAnimationFrame(node.dataset.ready === ready ? look : painted);
  look();
};
next();
"""


def show(what: str, took_ms: list[float]) -> None:
    """A line with percentiles."""
    p50, p95, p99 = np.percentile(took_ms, [50, 95, 99])
    print(f"{what}: p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms, worst {max(took_ms):.1f} ms")


async def run_clients(port: int, num_clients: int, rate: float, seconds: float) -> tuple[list[float], int]:
    """Clients that ask at a steady rate; milliseconds of every answer since it was due, and how many were errors."""
    took: list[float] = []
    bad = 0

    async def live(number: int) -> None:
        nonlocal bad
        rng, tags = random.Random(number), dict[str, bytes]()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begin = time.perf_counter() + rng.uniform(0, 1 / rate)
        for turn in range(int(seconds * rate)):
            due = begin + turn / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            path = choose_path(rng)
            known = b"If-None-Match: %b\r\n" % tags[path] if path in tags else b""
            writer.write(b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path.encode(), HEAD, known))
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 304"):
                found = re.search(rb"content-length: (\d+)", head)
                await reader.readexactly(int(found[1]) if found else 0)
                bad += not head.startswith(b"HTTP/1.1 200")
                if "from_ns" not in path and (tag := re.search(rb"etag: (\S+)", head)):
                    tags[path] = tag[1]
            took.append(1e3 * (time.perf_counter() - due))
        writer.close()

    await asyncio.gather(*(live(number) for number in range(num_clients)))
    return took, bad


def choose_path(rng: random.Random) -> str:
    """What a person at a dashboard asks for: half of it windows of the timeline, all different."""
    draw = rng.random()
    if draw < 0.4:
        return window_path(rng)
    if draw < 0.5:
        at = rng.randrange(RUN_NS)
        return f"/api/spans?key={KEY}&rank={rng.randrange(NUM_RANKS)}&from_ns={at}&to_ns={at + 250_000_000}"
    if draw < 0.8:
        return "/api/version"
    return rng.choice(["/api/cluster", "/api/jobs", f"/api/job?key={KEY}", "/metrics"])


def measure_clients(service: Service, num_clients: int, rate: float, seconds: float) -> None:
    """The whole crowd, on workers that have all opened the job: each new connection may meet another worker."""
    for _ in range(16):
        get(service, f"/api/timeline?key={KEY}")
    before, own = service.cpu_s(), time.process_time()
    start = time.perf_counter()
    took, bad = asyncio.run(run_clients(service.port, num_clients, rate, seconds))
    wall = time.perf_counter() - start
    print(f"{num_clients} clients, {len(took) / wall:,.0f} requests/s over {wall:.0f} s, {bad} answered with an error")
    show("  from when a request was due to its answer", took)
    used, own = service.cpu_s() - before, time.process_time() - own
    print(f"  CPU: service {100 * used / wall:.0f} % of a core ({1e3 * used / len(took):.2f} ms a request), ", end="")
    print(f"clients {100 * own / wall:.0f} % ({1e3 * own / len(took):.2f} ms a request)")
    print(f"  memory: {service.memory_mb():,.0f} MB at most, {service.memory_mb('VmRSS'):,.0f} MB now")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["all", "picture", "clients"], default="all")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second of each client")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=1, help="processes that answer the clients")
    parser.add_argument("--spans", type=int, default=1_000_000)
    options = parser.parse_args()
    print(f"machine: {describe_machine()}, load {os.getloadavg()[0]:.1f} before the start")
    with tempfile.TemporaryDirectory() as name:
        spans = make_job(Path(name) / "big", options.spans)
        print(f"job: {len(spans):,} spans on {NUM_RANKS} ranks over {RUN_NS / 1e9:.0f} s")
        if options.what != "clients":
            with run_service(Path(name)) as service:
                measure_pictures(service, spans)
        if options.what != "picture":
            with run_service(Path(name), "--workers", str(options.workers)) as service:
                measure_clients(service, options.clients, options.rate, options.seconds)


if __name__ == "__main__":
    main()
