"""How right `prism diagnose` is on random clusters with known truth, beside LLMPrism's published method.

Every seed is one cluster (16 to 1,024 GPUs, 1 to 10 tenants, any layout, half of them with one planted fault) that is
measured twice: clean, and with 1 % of the records lost, clocks 1 ms apart and sampling from 1:1 to 1:100. Seeds from
12060 on have not been looked at while tuning.

    python proving/benchmarks/observe_scoreboard.py --workers 16 --keep board.jsonl          the board; goes on where
    it was
    python proving/benchmarks/observe_scoreboard.py --first-seed 0 --seeds 20 --explain      while tuning
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from machine import describe_machine
from observe_captures import print_reliability

RATES = (1, 10, 30, 100)  # sampling rates of the degraded half, by seed
SPAN_RANKS = 16  # ranks of each job whose spans are compared
METHODS = ("prism", "paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the board: what it is, and what is wanted clean and degraded; `least` says that more is better."""

    name: str
    clean: float
    degraded: float
    least: bool
    unit: str = "%"


FIGURES = (
    Figure(name="jobs recovered exactly", clean=100, degraded=99, least=True),
    Figure(name="pair labels right", clean=99.5, degraded=98, least=True),
    Figure(name="degrees all right", clean=98, degraded=95, least=True),
    Figure(name="step duration error, mean", clean=0.1, degraded=0.3, least=False),
    Figure(name="span start/end error, mean", clean=0.3, degraded=1, least=False),
    Figure(name="culprit named first", clean=97.2, degraded=93, least=True),
    Figure(name="false findings in 1,000 healthy steps", clean=1, degraded=3, least=False, unit=""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What of each seed is scored."""

    with_spans: bool = True
    largest: int = 1024  # GPUs
    explain: bool = False  # print what was wrong


@dataclass
class Tally:
    """What is added up over scenarios, for one method and condition."""

    scenarios: int = 0
    failed: int = 0
    jobs: int = 0
    jobs_exact: int = 0
    pairs: int = 0
    pairs_right: int = 0
    layouts: int = 0
    layouts_right: int = 0
    stages: int = 0
    stages_right: int = 0
    steps: int = 0
    steps_missed: int = 0
    step_error: float = 0.0
    spans: int = 0
    spans_missed: int = 0
    span_error: float = 0.0
    faults: int = 0
    culprit_first: int = 0
    one_of_two: int = 0
    healthy_steps: int = 0
    false_findings: int = 0
    cpu_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    claims: list[tuple[str, float, bool]] = field(default_factory=list)  # what was said, how surely, whether right

    def add(self, other: Tally) -> None:
        """Add another scenario's counts."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def figures(self) -> list[float | None]:
        """The values of FIGURES, in their order; None where nothing was there to count."""
        return [
            _share(self.jobs_exact, self.jobs),
            _share(self.pairs_right, self.pairs),
            _share(self.layouts_right, self.layouts),
            _share(self.step_error, self.steps - self.steps_missed),
            _share(self.span_error, self.spans),
            _share(self.culprit_first, self.faults),
            _share(10 * self.false_findings, self.healthy_steps),
        ]

    def others(self) -> list[tuple[str, str]]:
        """What else is worth knowing."""
        return [
            ("stages right", say(_share(self.stages_right, self.stages))),
            ("steps missed", say(_share(self.steps_missed, self.steps))),
            ("spans missed", say(_share(self.spans_missed, self.spans + self.spans_missed))),
            ("culprits named first", f"{self.culprit_first} of {self.faults}"),
            ("culprits named as one of two", str(self.one_of_two)),
            ("false findings, healthy steps", f"{self.false_findings}, {self.healthy_steps:,}"),
            ("jobs, pairs, faults", f"{self.jobs:,}, {self.pairs:,}, {self.faults}"),
            ("scenarios that failed", f"{self.failed} of {self.scenarios}"),
            ("processor seconds", f"{self.cpu_s:,.0f}"),
        ]


def _share(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def say(value: float | None) -> str:
    """A figure in few characters."""
    return "-" if value is None else f"{value:.2f}" if abs(value) < 99.995 else f"{value:.0f}"


def count_gpus(seed: int) -> int:
    """How large the cluster of a seed is."""
    from prism.lab.scenarios import random_scenario

    return random_scenario(seed).num_gpus


def run_seed(seed: int, connection: Connection, settings: Settings) -> None:
    """Both conditions and methods of one seed; sends one document and ends."""
    from prism.lab.scenarios import make_scenario, random_scenario
    from prism.lab.scenarios.measurement import Measurement

    scenario = random_scenario(seed)
    rate = RATES[seed % len(RATES)]
    degraded = Measurement(lost=0.01, clock_offset_ms=1.0, sampling_rate=rate, with_exporter=True)
    document: dict[str, Any] = {"seed": seed, "gpus": scenario.num_gpus, "tenants": len(scenario.jobs), "rate": rate}
    for condition, measurement in (("clean", Measurement(with_exporter=True)), ("degraded", degraded)):
        made = make_scenario(replace(scenario, measurement=measurement), seed)
        document |= {"flows": made.flows.height}
        for method in METHODS:
            tally = score_or_fail(made, method, settings.with_spans)
            tally.wrong = [f"seed {seed} {condition} {method}: {line}" for line in tally.wrong]
            document[f"{condition} {method}"] = asdict(tally)
    connection.send(document)
    connection.close()


def score_or_fail(made: Any, method: str, with_spans: bool) -> Tally:
    """`score_one`; a method that breaks does not end the board but has found nothing."""
    try:
        return score_one(made, method, with_spans)
    except Exception as error:
        return _nothing_right(made.truth, f"{type(error).__name__}: {error}")


def score_one(made: Any, method: str, with_spans: bool) -> Tally:
    """Diagnose one measured scenario by one method and compare it with the truth."""
    from observe_findings_score import score_findings
    from observe_score import score
    from prism.observe import build_timeline
    from prism.observe.diagnose import diagnose, study_jobs
    from prism.observe.llmprism import diagnose_as_published, draw_published_timeline

    begin = time.process_time()
    if method == "prism":
        # An operator knows how many GPUs a host has; flows do not tell where ranks share a NIC.
        study = partial(study_jobs, gpus_per_host=made.truth["cluster"]["gpus_per_host"])
        diagnosis = diagnose(made.flows, made.topology, study=study)
    else:
        diagnosis = diagnose_as_published(made.flows, made.topology)
    cpu_s = time.process_time() - begin
    document = diagnosis.to_json()
    shape, found = score(document, made.truth), score_findings(document, made.truth)
    tally = Tally(scenarios=1, cpu_s=cpu_s, wrong=shape.wrong + found.wrong, step_error=float(sum(shape.step_errors)))
    tally.claims = shape.claims + found.claims
    for name in ("jobs", "jobs_exact", "pairs", "pairs_right", "layouts", "layouts_right", "stages", "stages_right",
                 "steps", "steps_missed"):  # fmt: skip
        setattr(tally, name, int(getattr(shape, name)))
    for name in ("faults", "culprit_first", "one_of_two", "healthy_steps", "false_findings"):
        setattr(tally, name, int(getattr(found, name)))
    if with_spans:
        draw = build_timeline if method == "prism" else draw_published_timeline
        _score_timeline(tally, draw(diagnosis), made, document)
    return tally


def _score_timeline(tally: Tally, spans: Any, made: Any, document: dict[str, Any]) -> None:
    """Spans of a few ranks of every job."""
    import polars as pl

    from observe_findings_score import score_spans

    for job in made.truth["jobs"]:
        wanted = set(job["endpoints"])
        found = max(document["jobs"], key=lambda j: len(wanted & set(j["endpoints"])), default=None)
        if found is None or not wanted & set(found["endpoints"]):
            continue
        known = made.truth["span_ranks"][job["id"]]
        ranks = known[:: max(1, len(known) // SPAN_RANKS)][:SPAN_RANKS]
        places = {
            found["endpoints"].index(r["endpoint"])
            for r in job["ranks"]
            if r["rank"] in ranks and r["endpoint"] in found["endpoints"]
        }
        scored = score_spans(
            spans.filter((pl.col("job") == found["id"]) & pl.col("rank").is_in(list(places))),
            made.spans.filter((pl.col("job") == job["id"]) & pl.col("rank").is_in(ranks)),
            job,
            found["endpoints"],
        )
        errors = scored.start_errors + scored.end_errors
        tally.spans += len(errors)
        tally.span_error += float(sum(errors))
        tally.spans_missed += scored.missed


def _nothing_right(truth: dict[str, Any], why: str) -> Tally:
    """A method that broke: everything was there to find and nothing was found."""
    jobs = truth["jobs"]
    return Tally(
        scenarios=1, failed=1, jobs=len(jobs), layouts=len(jobs), pairs=sum(len(j["pairs"]) for j in jobs),
        steps=sum(len(j["steps"]) for j in jobs), steps_missed=sum(len(j["steps"]) for j in jobs),
        faults=sum(f["fired"] for f in truth["faults"]), wrong=[why],
    )  # fmt: skip


@dataclass
class Board:
    """Runs seeds, each in a process of its own so that memory goes back, and gathers what they send."""

    workers: int
    settings: Settings
    deadline: float
    keep: Path | None = None  # a JSON line per scenario, added as it is done
    documents: list[dict[str, Any]] = field(default_factory=list)
    too_large: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)

    def run(self, seeds: list[int]) -> None:
        """Run seeds until done or until time is up; running ones are waited for."""
        context = get_context("spawn")
        running: dict[Connection, tuple[int, Any]] = {}
        done_before = self._read_kept(seeds)
        # The largest first, so that no long one is left for the end.
        with context.Pool(self.workers) as pool:
            sizes = dict(zip(seeds, pool.map(count_gpus, seeds, chunksize=1), strict=True))
        self.too_large = [seed for seed in seeds if sizes[seed] > self.settings.largest]
        waiting = sorted(set(seeds) - done_before - set(self.too_large), key=lambda seed: sizes[seed])
        while waiting or running:
            while waiting and len(running) < self.workers and time.monotonic() < self.deadline:
                receive, send = context.Pipe(duplex=False)
                process = context.Process(target=run_seed, args=(seed := waiting.pop(), send, self.settings))
                process.start()
                send.close()
                running[receive] = (seed, process)
            if not running:
                break
            for connection in wait(list(running)):
                seed, process = running.pop(connection)  # type: ignore[call-overload, index]
                self._take(seed, connection)  # type: ignore[arg-type]
                process.join()
            done = len(self.documents) + len(self.broken) + len(self.too_large)
            sys.stderr.write(f"\r{done} of {len(seeds)} scenarios, {len(running)} running ")
            sys.stderr.flush()
        sys.stderr.write("\n")

    def _read_kept(self, seeds: list[int]) -> set[int]:
        """Take scenarios that the same code has scored before; what other code scored does not count."""
        lines = self.keep.read_text().splitlines() if self.keep and self.keep.exists() else []
        kept = [document for document in map(json.loads, lines) if document.pop("code") == fingerprint()]
        self.documents += [document for document in kept if document["seed"] in seeds]
        return {document["seed"] for document in self.documents}

    def _take(self, seed: int, connection: Connection) -> None:
        try:
            document = connection.recv()
            self.documents.append(document)
            if self.settings.explain:
                print(*document["clean prism"]["wrong"], *document["degraded prism"]["wrong"], sep="\n", flush=True)
            if self.keep:
                with self.keep.open("a") as file:
                    file.write(json.dumps({"code": fingerprint(), **_without_details(document)}) + "\n")
        except EOFError:
            self.broken.append(seed)  # The process died: out of memory, or a scenario that cannot be made.


@cache
def fingerprint() -> str:
    """What a score depends on: the code that makes scenarios, diagnoses and scores them."""
    root = Path(__file__).resolve().parents[2]
    files = [
        f for part in ("observe", "scenarios", "simulate", "records") for f in (root / "src/prism" / part).rglob("*")
    ]
    code = hashlib.sha256()
    for file in sorted((*files, *root.glob("proving/benchmarks/observe_*score*.py"))):
        if file.is_file() and "__pycache__" not in file.parts:
            code.update(file.read_bytes())
    return code.hexdigest()[:16]


def total(documents: list[dict[str, Any]], key: str) -> Tally:
    """The sum over scenarios."""
    tally = Tally()
    for document in documents:
        tally.add(Tally(**document[key]))
    return tally


def print_board(documents: list[dict[str, Any]]) -> None:
    """The table: both conditions, both methods, and whether Prism's figure is good enough."""
    tallies = {f"{c} {m}": total(documents, f"{c} {m}") for c in ("clean", "degraded") for m in METHODS}
    shown = {key: tally.figures() for key, tally in tallies.items()}
    print(f"\n{'':38}{'clean':>24}{'':8}{'degraded':>24}")
    head = f"{'wanted':>8}{'prism':>8}{'paper':>8}{'':>5}"
    print(f"{'figure':38}{head}   {head}")
    for i, figure in enumerate(FIGURES):
        cells = []
        for condition, wanted in (("clean", figure.clean), ("degraded", figure.degraded)):
            ours, theirs = shown[f"{condition} prism"][i], shown[f"{condition} paper"][i]
            good = ours is not None and (ours >= wanted if figure.least else ours <= wanted)
            mark = ("≥" if figure.least else "≤") + f"{wanted:g}"
            cells.append(f"{mark:>8}{say(ours):>8}{say(theirs):>8}{' yes' if good else '  NO':>5}")
        print(f"{figure.name + (', ' + figure.unit if figure.unit else ''):38}{cells[0]}   {cells[1]}")
    print(f"\n{'besides':42}" + "".join(f"{key:>18}" for key in tallies))
    rows = {key: tally.others() for key, tally in tallies.items()}
    for i, (name, _) in enumerate(rows["clean prism"]):
        print(f"{name:42}" + "".join(f"{rows[key][i][1]:>18}" for key in tallies))


def print_rates(documents: list[dict[str, Any]]) -> None:
    """The degraded half by sampling rate; Prism's figures, with the paper's in brackets."""
    rates = sorted({d["rate"] for d in documents})
    print("\ndegraded, by sampling rate: prism (paper)")
    print(f"{'figure':38}" + "".join(f"{'1:' + str(rate):>18}" for rate in rates))
    columns = []
    for rate in rates:
        part = [d for d in documents if d["rate"] == rate]
        columns.append([total(part, f"degraded {m}").figures() for m in METHODS])
    for i, figure in enumerate(FIGURES):
        cells = (f"{say(ours[i])} ({say(theirs[i])})" for ours, theirs in columns)
        print(f"{figure.name:38}" + "".join(f"{cell:>18}" for cell in cells))


def warm_up() -> None:
    """Compile once, so that the workers do not all do it."""
    from prism.lab.scenarios import load_scenario, make_scenario

    made = make_scenario(load_scenario("dense-dp-16"), 0)
    for method in METHODS:
        score_or_fail(made, method, True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many scenarios")
    parser.add_argument("--first-seed", type=int, default=12_360)
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0))))
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start no scenario after this")
    parser.add_argument("--largest", type=int, default=1024, help="leave clusters of more GPUs out; quicker")
    parser.add_argument("--no-spans", action="store_true", help="leave the timelines out; quicker")
    parser.add_argument("--explain", action="store_true", help="print what was wrong; only while tuning")
    parser.add_argument(
        "--keep", type=Path, help="file for the figures of each scenario; those in it are not run again"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    # Workers share the cores; more threads in each would only get in each other's way.
    for name in ("POLARS_MAX_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    print(f"{describe_machine()}; {arguments.workers} workers")
    begin = time.monotonic()
    warm_up()
    settings = Settings(with_spans=not arguments.no_spans, largest=arguments.largest, explain=arguments.explain)
    deadline = begin + arguments.limit_seconds
    board = Board(workers=arguments.workers, settings=settings, deadline=deadline, keep=arguments.keep)
    board.run(list(range(arguments.first_seed, arguments.first_seed + arguments.seeds)))
    documents = sorted(board.documents, key=lambda d: d["seed"])
    print(
        f"{len(documents)} of {arguments.seeds} scenarios, seeds {arguments.first_seed} to "
        f"{arguments.first_seed + arguments.seeds - 1}, {sum(d['flows'] for d in documents):,} flows (degraded), "
        f"{time.monotonic() - begin:,.0f} s"
    )
    if board.too_large:
        print(f"{len(board.too_large)} clusters of more than {arguments.largest} GPUs left out")
    if board.broken:
        print(f"seeds whose process died: {sorted(board.broken)}")
    print_board(documents)
    print_rates(documents)
    for condition in ("clean", "degraded"):
        print(f"\n{condition}: how often what Prism says with a confidence is right")
        print_reliability([(w, c, r) for w, c, r in total(documents, f"{condition} prism").claims])


def _without_details(document: dict[str, Any]) -> dict[str, Any]:
    """Scenarios kept for the board tell how many were wrong, not which."""
    return {k: {n: x for n, x in v.items() if n != "wrong"} if isinstance(v, dict) else v for k, v in document.items()}


if __name__ == "__main__":
    main()
