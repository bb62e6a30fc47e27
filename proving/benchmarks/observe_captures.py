"""How right `prism diagnose` is on captures with truth that others made: one folder each, or a folder of such folders.

A capture is `flows.parquet`, `topology.csv` and `truth.json`: jobs with endpoints, dp, pp, pairs with the kinds that
count as right, steps (start_ns, duration_ns), the planted culprit or null, and start_ns and end_ns where jobs follow
each other. A culprit is found where the first finding of its job has its kind and names it. A finding that says that it
is one of two workers, of which one is the culprit, is counted apart; every other finding is false. Steps count where
their mean error is at most 0.1 %.

    python proving/benchmarks/observe_captures.py FOLDER... [--explain] [--reliability]
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEP_ERROR = 0.001
BINS = ((0.0, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01))  # of confidence
FIGURES = (
    "jobs exact", "jobs or phases exact", "pair labels", "degrees", "steps within 0.1 %", "culprit first",
    "culprit one of two", "false findings", "crashes",
)  # fmt: skip


@dataclass
class Board:
    """What is added up over the jobs of all captures."""

    jobs: int = 0
    exact: int = 0
    phases: int = 0  # exact, or a phase of a job that is told to have gone on with other hosts
    pairs: list[float] = field(default_factory=list)
    degrees: int = 0
    steps_right: int = 0
    faults: int = 0
    first: int = 0
    of_two: int = 0
    false: int = 0
    crashes: int = 0
    wrong: list[str] = field(default_factory=list)
    claims: list[tuple[str, float, bool]] = field(
        default_factory=list
    )  # what was claimed, how surely, and whether right

    def add(self, other: Board) -> None:
        """Add the counts of other captures."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def figures(self) -> list[str]:
        """The values of FIGURES, in their order."""
        num = max(self.jobs, 1)
        pairs = sum(self.pairs) / max(len(self.pairs), 1)
        counts = (self.exact / num, self.phases / num, pairs, self.degrees / num, self.steps_right / num)
        shares = [f"{value:.2f}" for value in counts]
        return [*shares, f"{self.first} of {self.faults}", str(self.of_two), str(self.false), str(self.crashes)]


def score_capture(board: Board, document: dict[str, Any], truth: dict[str, Any], name: str) -> None:
    """Add the jobs of one capture."""
    taken: set[str] = set()
    for job in truth["jobs"]:
        board.jobs += 1
        board.faults += job.get("culprit") is not None
        found = max(document["jobs"], key=lambda j: _likeness(job, j), default=None)
        if found is None or not set(job["endpoints"]) & set(found["endpoints"]):
            board.wrong.append(f"{name} {job['name']}: not found")
            board.pairs.append(0.0)
            continue
        again = found["id"] in taken
        exact = set(found["endpoints"]) == set(job["endpoints"]) and not again
        # Of a job that went on as another, what is over when the other has made a step is about the first.
        begun = max((s["start_ns"] + s["duration_ns"] for s in job["steps"][:1] if again), default=0)
        told = [f for f in document["findings"] if not begun or f["end_ns"] > begun]
        taken.add(found["id"])
        pairs, degrees, steps = _share_of_pairs(job, found), _same_degrees(job, found), _step_error(job, found)
        board.exact += exact
        board.phases += exact or any(_is_phase(job, phase) for phase in found.get("phases", []))
        board.pairs.append(pairs)
        board.degrees += degrees
        board.steps_right += steps <= STEP_ERROR
        board.claims += _list_claims(job, found, told)
        board.of_two += any(f["job"] == found["id"] and _is_one_of_two(job.get("culprit"), f) for f in told)
        first, false = _judge_findings(job, found, told)
        board.first += first
        board.false += false
        if not (exact and pairs > 0.99 and degrees and steps <= STEP_ERROR and first == bool(job["culprit"])) or false:
            board.wrong.append(
                f"{name} {job['name']}: exact {exact}, pairs {pairs:.2f}, degrees {degrees}, "
                f"step error {100 * steps:.3f} %, culprit first {first}, false findings {false}"
            )


def _is_phase(job: dict[str, Any], phase: dict[str, Any]) -> bool:
    """Whether a phase of a job has the endpoints and the time of one that is told apart in the truth."""
    middle = [step["start_ns"] for step in job["steps"]][len(job["steps"]) // 2 :][:1]
    inside = bool(middle) and phase["started_ns"] <= middle[0] <= phase["ended_ns"]
    return inside and set(phase["endpoints"]) == set(job["endpoints"])


def _likeness(job: dict[str, Any], found: dict[str, Any]) -> float:
    """Endpoints that both have, and half of the time; jobs may follow each other on the same hosts."""
    wanted, got = set(job["endpoints"]), set(found["endpoints"])
    likeness = len(wanted & got) / len(wanted | got)
    if not found["steps"] or not job.get("end_ns"):
        return likeness
    begin, end = found["steps"][0]["start_ns"], found["steps"][-1]["end_ns"]
    both = max(0, min(end, job["end_ns"]) - max(begin, job["start_ns"]))
    return likeness + 0.5 * both / max(1, max(end, job["end_ns"]) - min(begin, job["start_ns"]))


def _share_of_pairs(job: dict[str, Any], found: dict[str, Any]) -> float:
    kinds = {(p["dst"], p["src"]): p["kind"] for p in found["pairs"]}
    kinds |= {(p["src"], p["dst"]): p["kind"] for p in found["pairs"]}
    right = sum(kinds.get((p["src"], p["dst"])) in p["kinds"] for p in job["pairs"])
    return right / max(1, len(job["pairs"]))


def _list_claims(
    job: dict[str, Any], found: dict[str, Any], findings: list[dict[str, Any]]
) -> list[tuple[str, float, bool]]:
    """Layouts, pairs and findings of one job with their confidence, and whether each is right."""
    claims = []
    if found["layout"]["dp"] is not None:
        claims.append(("layout", float(found["layout"]["confidence"]), _same_degrees(job, found)))
    wanted = {(p["src"], p["dst"]): p["kinds"] for p in job["pairs"]}
    wanted = {(d, s): kinds for (s, d), kinds in wanted.items()} | wanted
    for pair in found["pairs"]:
        kinds = wanted.get((pair["src"], pair["dst"]))
        if kinds is not None and pair["kind"] != "unknown":
            claims.append(("pair", float(pair["confidence"]), pair["kind"] in kinds))
    planted = job.get("culprit")
    own = [finding for finding in findings if finding["job"] == found["id"]]
    right = [(f, planted is not None and (_is_hit(planted, f) or _is_one_of_two(planted, f))) for f in own]
    return claims + [("finding", float(f["score"]), hit) for f, hit in right]


def _same_degrees(job: dict[str, Any], found: dict[str, Any]) -> bool:
    return all(found["layout"][degree] == job[degree] for degree in ("dp", "pp"))


def _step_error(job: dict[str, Any], found: dict[str, Any]) -> float:
    """The mean relative error of step lengths; a step that nothing overlaps counts as wholly wrong."""
    errors = []
    for step in job["steps"][1:-1]:
        begin, length = step["start_ns"], step["duration_ns"]
        over, got = max(
            (
                (min(begin + length, s["end_ns"]) - max(begin, s["start_ns"]), s["end_ns"] - s["start_ns"])
                for s in found["steps"]
            ),
            default=(0, 0),
        )
        errors.append(abs(got - length) / length if over > 0 else 1.0)
    return sum(errors) / max(1, len(errors))


def _judge_findings(job: dict[str, Any], found: dict[str, Any], findings: list[dict[str, Any]]) -> tuple[bool, int]:
    """Whether the first finding of a job is the planted one, and how many others there are."""
    own = [f for f in findings if f["job"] == found["id"]]
    planted = job.get("culprit")
    if planted is None:
        return False, len(own)
    hits = [_is_hit(planted, finding) for finding in own]
    sets = [_is_one_of_two(planted, finding) for finding in own]
    return bool(hits and hits[0]), len(hits) - sum(map(max, hits, sets))


def _is_hit(planted: dict[str, Any], finding: dict[str, Any]) -> bool:
    if finding["kind"] not in planted["kind"].split("|"):
        return False
    name = str(finding["culprit"]["id"])
    if planted.get("type", "").startswith("job") and name == finding["job"]:
        return True  # Records do not show how a job is called.
    if planted["kind"] == "stage_imbalance":
        return (re.findall(r"\d+", name) or [""])[-1] == str(planted["id"])
    addresses, own = set(re.findall(r"\d+\.\d+\.\d+\.\d+", name)), set(planted.get("endpoints") or [])
    near = bool(addresses & own) if planted["kind"] == "slow_link" else bool(addresses) and addresses <= own
    return name == planted["id"] or near


def _is_one_of_two(planted: dict[str, Any] | None, finding: dict[str, Any]) -> bool:
    """Whether a finding names both ends of a hop as those that cannot be told apart, one of them the culprit."""
    if planted is None or finding["kind"] not in planted["kind"].split("|") or finding["culprit"]["type"] != "group":
        return False
    if finding["kind"] not in ("slow_compute", "hang") or _is_hit(planted, finding):
        return False
    named, own = set(str(finding["culprit"]["id"]).split(",")), set(planted.get("endpoints") or [])
    return bool(named & own) and len(named) <= 2 * max(len(own), 1)


def run_capture(folder: Path) -> tuple[Board, int]:
    """Diagnose one capture and score it; also how many flows it has."""
    from prism.collect.tables import load_flows
    from prism.observe import diagnose
    from prism.records import TOPOLOGY, read_table

    board = Board()
    records = load_flows([folder / "flows.parquet"]).flows  # as `prism diagnose` reads them
    truth = json.loads((folder / "truth.json").read_text())
    try:
        document = diagnose(records, read_table(folder / "topology.csv", TOPOLOGY)).to_json()
    except Exception as error:
        board.crashes += 1
        board.wrong.append(f"{folder.name}: {type(error).__name__}: {error}")
        document = {"jobs": [], "findings": [], "notes": []}
    board.crashes += sum("could not be studied" in note for note in document["notes"])
    score_capture(board, document, truth, folder.name)
    return board, records.height


def print_reliability(claims: list[tuple[str, float, bool]]) -> None:
    """How often what is claimed with about one confidence is right."""
    print(f"{'claim':10}{'confidence':>14}{'number':>8}{'said':>8}{'right':>8}{'off':>8}")
    for what in dict.fromkeys(claim[0] for claim in claims):
        for low, high in BINS:
            own = [claim for claim in claims if claim[0] == what and low <= claim[1] < high]
            if own:
                said, right = (sum(claim[i] for claim in own) / len(own) for i in (1, 2))
                shown = f"{low:.1f} to {min(high, 1):.1f}"
                print(f"{what:10}{shown:>14}{len(own):>8,}{said:>8.2f}{right:>8.2f}{100 * (right - said):>+8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--explain", action="store_true", help="print what was wrong")
    parser.add_argument("--reliability", action="store_true", help="print how often each confidence is right")
    arguments = parser.parse_args()
    board, begin, flows = Board(), time.monotonic(), 0
    folders = sorted(file.parent for folder in arguments.folders for file in folder.glob("**/truth.json"))
    for folder in folders:
        scored, records = run_capture(folder)
        board.add(scored)
        flows += records
    print(f"{len(folders)} captures, {board.jobs} jobs, {flows:,} flows, {time.monotonic() - begin:.0f} s")
    for name, value in zip(FIGURES, board.figures(), strict=True):
        print(f"{name:22}{value:>12}")
    if arguments.reliability:
        print_reliability(board.claims)
    if arguments.explain:
        print(*board.wrong, sep="\n")


if __name__ == "__main__":
    main()
