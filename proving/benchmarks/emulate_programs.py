"""Run `prism emulate` on every training script of a folder and print what came of each: the program board.

The folder has a `cases.json`: per case `script` (file and arguments), `worlds`, `expect` (works, bug or refuse), and
optionally `real_cpu_ms` (main thread's CPU time per iteration of each real rank) and `culprits` (world size -> ranks,
one of which the message must name). Several cases run at once on a machine with more cores (`--jobs`), each bound to an
equal share of them, so that ranks see no more cores than they would on a machine of that size.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HANG_WORDS = ("would hang", "the run hangs", "deadlock", " waits in ", " waits at ")
MODULES = {"b01": "transformers", "b05": "lightning", "b07": "deepspeed"}
PACKAGES = ("transformers", "accelerate", "lightning", "deepspeed", "datasets")
SHORTEST_S = 10.0  # no run is started for less
TIME_FACTOR = 2.0  # real times were taken once on a busy machine, so only gross errors count as wrong
OUTCOMES = ("works", "bug named", "refused", "false hang", "crash", "hang", "wrong time", "bug missed", "wrong rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One script at one world size, and what should come of it."""

    name: str
    script: tuple[str, ...]
    world: int
    expect: str
    real_cpu_ms: tuple[float, ...]
    culprits: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a case."""

    name: str
    world: int
    expect: str
    outcome: str
    right: bool
    wall_s: float
    cpu_s: float  # of the command and all its ranks; on a busy machine the wall time says little
    predicted_ms: float | None
    compute_ms: float | None
    real_ms: float | None
    told: str


def read_cases(folder: Path, only: Sequence[str] = (), worlds: Sequence[int] = ()) -> Iterator[Case]:
    """Every case of the folder at each of its world sizes."""
    document: dict[str, Any] = json.loads((folder / "cases.json").read_text())
    for name, case in document.items():
        if only and not any(name.startswith(prefix) for prefix in only):
            continue
        for world in case["worlds"]:
            if not worlds or world in worlds:
                culprits = case.get("culprits", {}).get(str(world)) or _known_culprits(name, world)
                yield Case(
                    name=name,
                    script=(str(folder / case["script"][0]), *map(str, case["script"][1:])),
                    world=world,
                    expect=case["expect"],
                    real_cpu_ms=tuple(case.get("real_cpu_ms") or ()),
                    culprits=frozenset(culprits),
                )


def _known_culprits(name: str, world: int) -> Sequence[int]:
    """Which ranks are at fault in the programs whose cases.json does not say so."""
    known = {
        "d03": [world // 2 + 1],
        "d06": range(world),
        "d08": range(4, world),
        "d12": range(3, world, 4),
    }
    return known.get(name, ())


def run_case(case: Case, limit_s: float, options: Sequence[str] = ()) -> Result:
    """Emulate it in a process of its own, in a folder of its own."""
    checked = "--check" in options
    own = [option for option in options if option != "--check"]
    tool = "check" if checked else "emulate"
    command = [sys.executable, "-m", "prism.cli.main", tool, "--world-size", str(case.world), "--json", *own]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    started, used = time.monotonic(), _cpu_of_children()
    with tempfile.TemporaryDirectory(prefix="prism-program-") as scratch:
        process = subprocess.Popen(
            [*command, "--", *case.script],
            cwd=scratch,
            env=environment,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the session that this call made, and nothing else
            process.communicate()
            out, errors = "", f"prism: no answer in {limit_s:g} s"
    if checked:
        result = _judge_check(case, json.loads(out) if out else None, " ".join(errors.split())[-300:])
        return replace(result, wall_s=round(time.monotonic() - started, 1), cpu_s=round(_cpu_of_children() - used, 1))
    document = json.loads(out) if process.returncode == 0 else None
    told = "" if document is not None else _last_message(errors)
    result = _judge(case, document, told or " ".join(errors.split())[-300:], _outcome(process.returncode, told))
    return replace(result, wall_s=round(time.monotonic() - started, 1), cpu_s=round(_cpu_of_children() - used, 1))


def _judge_check(case: Case, document: dict[str, Any] | None, errors: str) -> Result:
    """What `prism check` says: clean, a problem that names a rank at fault, or why it cannot be checked."""
    verdict = document["verdict"] if document else "no answer"
    problems = document["problems"] if document else []
    told = "; ".join(f"{p['text']} [{p['file']}:{p['line']}]" for p in problems) or errors * (verdict != "clean")
    found = {rank for problem in problems for rank in problem["ranks"]}
    named = not case.culprits or bool(found & case.culprits)
    outcome = {"clean": "works", "unsupported": "refused", "no answer": "hang"}.get(verdict, "false hang")
    if case.expect == "bug":
        # A bug that makes a rank fail by itself is named by that rank's own error.
        failed = {int(rank) for rank in re.findall(r"\brank (\d+) failed", told)}
        named = named if verdict != "unsupported" else bool(failed & case.culprits or (failed and not case.culprits))
        outcome = "bug missed" if outcome == "works" else "bug named" if named else "wrong rank"
    right = {"works": outcome == "works", "bug": outcome == "bug named", "refuse": outcome == "refused"}[case.expect]
    return Result(
        name=case.name, world=case.world, expect=case.expect, outcome=outcome, right=right, wall_s=0.0, cpu_s=0.0,
        predicted_ms=None, compute_ms=None, real_ms=None, told=told,
    )  # fmt: skip


def _outcome(code: int, told: str) -> str:
    if code == 0:
        return "works"
    if code == -signal.SIGKILL:
        return "hang"
    if any(word in told for word in HANG_WORDS):
        return "false hang"
    # Without an error of its own it died.
    return "crash" if not told or "failed in the script" in told else "refused"


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_message(errors: str) -> str:
    """The command's own error, which may be wrapped over several lines."""
    found = re.split(r"^(?:prism: |error: |Error: )", errors, flags=re.MULTILINE)
    return " ".join(found[-1].split()) if len(found) > 1 else ""


def _judge(case: Case, document: dict[str, Any] | None, told: str, outcome: str) -> Result:
    predicted = compute = None
    real = max(case.real_cpu_ms, default=None)
    if document is not None:
        predicted = float(document["iteration_ms"]["mean"] or 0.0)
        compute = predicted * float(document["split"]["compute"])
        # Real CPU time counts what the main thread does inside gloo, and the longest rank sets the pace.
        if real is not None and not (predicted >= real / TIME_FACTOR and compute <= real * TIME_FACTOR):
            outcome = "wrong time"
    if case.expect == "bug":
        if outcome == "works":
            outcome = "bug missed"
        elif outcome in ("false hang", "crash"):
            ranks = {int(r) for r in re.findall(r"\brank (\d+)", told)}
            for many in re.findall(r"\branks ([\d, ]+(?:and \d+)?)", told):
                ranks |= {int(r) for r in re.findall(r"\d+", many)}
            outcome = "bug named" if not case.culprits or ranks & case.culprits else "wrong rank"
    right = {"works": outcome == "works", "bug": outcome == "bug named", "refuse": outcome == "refused"}[case.expect]
    return Result(
        name=case.name,
        world=case.world,
        expect=case.expect,
        outcome=outcome,
        right=right,
        wall_s=0.0,
        cpu_s=0.0,
        predicted_ms=predicted,
        compute_ms=compute,
        real_ms=real,
        told="" if document is not None else told,
    )


def main() -> None:
    """Run the board."""
    args = _parse()
    only, worlds = args.only.split(",") if args.only else (), [int(w) for w in args.worlds.split(",") if w]
    found = [case for folder in args.folders for case in read_cases(folder.resolve(), only, worlds)]
    missing = {case.name for case in found if not is_installed(case)}
    later = tuple(filter(None, args.later.split(",")))
    cases = sorted((c for c in found if c.name not in missing), key=lambda c: bool(later) and c.name.startswith(later))
    results = _read_results(args.output, cases) if args.resume else []
    known = {(result.name, result.world) for result in results}
    for result in _run_all([case for case in cases if (case.name, case.world) not in known], args):
        results.append(result)
        print(_describe(result), flush=True)
        if args.output:
            with args.output.open("a") as stream:
                stream.write(json.dumps(asdict(result)) + "\n")
    print(f"{sum(r.right for r in results)} of {len(results)} right: {dict(Counter(r.outcome for r in results))}")
    done = {(r.name, r.world) for r in results}
    left = [f"{case.name}-{case.world}" for case in cases if (case.name, case.world) not in done]
    print(f"not run for want of time: {' '.join(left) or 'none'}; of packages: {' '.join(sorted(missing)) or 'none'}")


def _read_results(ledger: Path | None, cases: Sequence[Case]) -> list[Result]:
    """The last result of each of these cases in the file of an earlier run."""
    lines = ledger.read_text().splitlines() if ledger is not None and ledger.exists() else []
    results = {(result.name, result.world): result for result in (Result(**json.loads(line)) for line in lines)}
    return [results[key] for case in cases if (key := (case.name, case.world)) in results]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="cases whose names begin with one of these, as a02,c06")
    parser.add_argument("--later", default="", help="cases that come after all others, named in the same way")
    parser.add_argument("--worlds", default="", help="world sizes to run, as 8,256")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds per run")
    parser.add_argument("--seconds", type=float, default=1e9, help="no run starts, and none goes on, after this long")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--options", default="", help="more options of prism emulate")
    parser.add_argument("--check", action="store_true", help="run `prism check` in the place of `prism emulate`")
    parser.add_argument("--output", type=Path, default=None, help="file for the results as JSON Lines")
    parser.add_argument("--resume", action="store_true", help="leave out the cases that --output already has")
    return parser.parse_args()


def is_installed(case: Case) -> bool:
    """Whether this machine has the packages that the script imports."""
    text = Path(case.script[0]).read_text()
    needed = [name for name in PACKAGES if re.search(rf"^\s*(?:import|from) {name}\b", text, re.MULTILINE)]
    return all(importlib.util.find_spec(name) is not None for name in needed)


def open_pool(jobs: int) -> ProcessPoolExecutor:
    """Processes that are each bound to an equal share of the cores, as is all that they start."""
    cores, context = sorted(os.sched_getaffinity(0)), multiprocessing.get_context("fork")
    shares, each = context.SimpleQueue(), max(len(cores) // jobs, 1)
    for job in range(jobs):
        shares.put([cores[(job * each + i) % len(cores)] for i in range(each)])
    return ProcessPoolExecutor(jobs, context, _take_share, (shares,))


def _take_share(shares: Any) -> None:
    os.sched_setaffinity(0, shares.get())


def _run_all(cases: Sequence[Case], args: argparse.Namespace) -> Iterator[Result]:
    """The results as they come, of as many as the time allows."""
    until, options = time.monotonic() + args.seconds, [*args.options.split(), *(["--check"] if args.check else [])]
    with open_pool(args.jobs) as pool:
        running = [pool.submit(_run_in_time, case, until, args.limit, options) for case in cases]
        for future in as_completed(running):
            result = future.result()
            if result is not None:
                yield result


def _run_in_time(case: Case, until: float, limit_s: float, options: Sequence[str]) -> Result | None:
    left = until - time.monotonic()
    if left < SHORTEST_S:
        return None
    result = run_case(case, min(limit_s, left), options)
    return None if result.outcome == "hang" and left < limit_s else result


def _describe(result: Result) -> str:
    times = ""
    if result.predicted_ms is not None:
        real = f", real {result.real_ms:.2f}" if result.real_ms else ""
        times = f"{result.predicted_ms:8.2f} ms (compute {result.compute_ms:.2f}{real})"
    place = f"{'ok ' if result.right else 'NOT'} {result.name:10} {result.world:5} {result.outcome:10}"
    return f"{place} {result.wall_s:6.1f} s ({result.cpu_s:.0f} s of CPU) {times} {result.told[:300]}"


if __name__ == "__main__":
    main()
