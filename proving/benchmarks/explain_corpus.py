"""Score `prism explain` on what proving/make_corpus.py made; of the held-back half only the numbers are shown.

python proving/benchmarks/explain_corpus.py OUTPUT
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HALVES = ("developer", "held-back")
CHUNK = 20  # jobs per call of `prism explain`
Row = dict[str, Any]
_STAYS = ("stop", "none")  # actions after which the job does not run again


def answers(folders: list[Path]) -> list[Row]:
    """What `prism explain --json` says of each folder of logs."""
    found: list[Row] = []
    for start in range(0, len(folders), CHUNK):
        logs = [str(folder / "logs") for folder in folders[start : start + CHUNK]]
        command = [sys.executable, "-m", "prism", "explain", "--json", "--quiet", *logs]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
        if len(lines) != len(logs):
            raise SystemExit(f"prism explain answered {len(lines)} of {len(logs)} logs: {done.stderr[-400:]}")
        found += lines
    return found


def macro_f1(pairs: list[tuple[str, str]]) -> float:
    """The mean F1 over the true reasons."""
    scores = []
    for reason in sorted({truth for truth, _ in pairs}):
        hit = sum(t == reason == p for t, p in pairs)
        wrong = sum((t == reason) != (p == reason) for t, p in pairs)
        scores.append(2 * hit / (2 * hit + wrong))
    return sum(scores) / max(1, len(scores))


def share(rows: list[bool]) -> str:
    """Hits of all, and the share."""
    return f"{sum(rows)}/{len(rows)}" + (f" = {sum(rows) / len(rows):.1%}" if rows else "")


def report(half: str, truths: list[Row], said: list[Row]) -> None:
    """Print the figures of one half."""
    both = list(zip(truths, said, strict=True))
    failed = [(t, a) for t, a in both if t["reason"] != "none"]
    finished = [a for t, a in both if t["reason"] == "none"]
    told = [(t["reason"], t["reason"] if a["reason"] in t["also"] else a["reason"]) for t, a in failed]
    print(f"{half}: {len(failed)} failed jobs, {len(finished)} finished")
    print(
        f"  reason macro-F1          {macro_f1(told):.3f}   (the first label alone: "
        f"{macro_f1([(t['reason'], a['reason']) for t, a in failed]):.3f})"
    )
    print(f"  reason right             {share([t == p for t, p in told])}")
    placed = [
        p == t["reason"] or a["category"] == t["category"]
        for (t, a), (_, p) in zip(failed, told, strict=True)
        if t["category"]
    ]
    ranked = [(t, a) for t, a in failed if t["rank"] is not None]
    print(f"  category right           {share(placed)}")
    print(f"  false stop               {share([a['action'] in _STAYS for t, a in failed if t['restarts'] is True])}")
    print(
        f"  false restart            {share([a['action'] not in _STAYS for t, a in failed if t['restarts'] is False])}"
    )
    print(f"  rank right               {share([a['first_rank'] == t['rank'] for t, a in ranked])}")
    print(f"  host right               {share([a['hosts'] == [t['host']] for t, a in failed if t['host']])}")
    print(f"  failed called finished   {share([a['reason'] == 'none' for _, a in failed])}")
    print(f"  finished called failed   {share([a['reason'] not in ('none', 'Unknown') for a in finished])}")
    print(f"  finished called Unknown  {share([a['reason'] == 'Unknown' for a in finished])}")


def faults_of(truth: Row, answer: Row) -> list[str]:
    """What is wrong with one answer."""
    wrong = []
    if answer["reason"] not in (truth["reason"], *truth["also"]):
        wrong.append(f"{answer['reason']}, is {truth['reason']}")
    if truth["restarts"] is not None and (answer["action"] not in _STAYS) != truth["restarts"]:
        wrong.append(f"action {answer['action']}")
    if truth["rank"] is not None and answer["first_rank"] != truth["rank"]:
        wrong.append(f"rank {answer['first_rank']}, is {truth['rank']}")
    if truth["host"] and answer["hosts"] != [truth["host"]]:
        wrong.append(f"hosts {answer['hosts']}, is {truth['host']}")
    return wrong


def main() -> None:
    """Score both halves; only the developer half's misses are shown."""
    parser = argparse.ArgumentParser(description="Score prism explain on the corpus.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--half", choices=HALVES, help="score this half only")
    options = parser.parse_args()
    output = options.output
    for half in [options.half] if options.half else HALVES:
        folders = sorted(f.parent for f in (output / half).glob("*/truth.json"))
        truths = [json.loads((folder / "truth.json").read_text()) for folder in folders]
        said = answers(folders)
        report(half, truths, said)
        if half == "developer":
            for truth, answer in zip(truths, said, strict=True):
                if wrong := faults_of(truth, answer):
                    print(f"    {truth['way']:<32} {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
