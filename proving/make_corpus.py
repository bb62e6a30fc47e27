"""Make real jobs fail (and some finish) in many ways, and keep their logs with the truth about each.

    python proving/make_corpus.py OUTPUT [--only NAME ...] [--family NAME ...] [--again]

A way belongs to OUTPUT/developer or OUTPUT/held-back by a hash of its name. Each gets logs/ and truth.json there;
a job that did not end as it was meant to (its proof is not in its logs) is left out and named. Whoever writes rules
for `prism explain` reads the developer half alone: nothing of the held-back half's logs is ever printed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "corpus"))

from way import FINISHED, CannotMake, Place, Way, category_of, half_of

MODULES = tuple(sorted(f.stem for f in (Path(__file__).parent / "corpus" / "ways").glob("*.py")))


def all_ways() -> list[Way]:
    """Every way, in the order of the modules."""
    found = [way for name in MODULES for way in getattr(importlib.import_module(f"ways.{name}"), "WAYS", ())]
    twice = [name for name, count in Counter(way.name for way in found).items() if count > 1]
    if twice:
        raise SystemExit(f"two ways have the same name: {', '.join(twice)}")
    return found


def make(way: Way, output: Path) -> str:
    """Run one job; say how that went, without a word of its logs."""
    folder = output / half_of(way.name) / way.name
    shutil.rmtree(folder, ignore_errors=True)
    logs = folder / "logs"
    logs.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as scratch:
        Path(scratch).chmod(0o755)
        try:
            way.make(Place(name=way.name, logs=logs, scratch=Path(scratch)))
        except CannotMake as why:
            shutil.rmtree(folder)
            return f"left out: {why}"
    proofs = [re.search(way.proof, f.read_text(errors="replace")) for f in logs.rglob("*") if f.is_file()]
    if not (all(proofs) if way.reason == FINISHED else any(proofs)):
        shutil.rmtree(output / "not-as-meant" / way.name, ignore_errors=True)
        shutil.move(folder, output / "not-as-meant" / way.name)
        return "left out: it did not end as it was meant to"
    truth = {"way": way.name, "family": way.family, "half": half_of(way.name), "reason": way.reason,
             "also": list(way.also), "category": category_of(way.reason), "restarts": way.restarts,
             "rank": way.rank, "host": way.host}  # fmt: skip
    (folder / "truth.json").write_text(json.dumps(truth) + "\n")
    return "made"


def write_manifest(output: Path) -> int:
    """All truths in one file; returns how many."""
    truths = [json.loads(f.read_text()) for f in sorted(output.glob("*/*/truth.json"))]
    (output / "manifest.jsonl").write_text("".join(json.dumps(t) + "\n" for t in truths))
    return len(truths)


def main() -> None:
    """Make the jobs one after the other."""
    parser = argparse.ArgumentParser(description="Make real jobs fail in many ways and keep their logs.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--family", nargs="*", default=[])
    parser.add_argument("--again", action="store_true", help="also make what is already there")
    parser.add_argument("--list", action="store_true", help="show the ways and their halves, make nothing")
    args = parser.parse_args()
    for way in all_ways():
        if (args.only and way.name not in args.only) or (args.family and way.family not in args.family):
            continue
        if args.list:
            print(f"{half_of(way.name):<10} {way.family:<13} {way.name:<32} {way.reason}")
            continue
        if not args.again and (args.output / half_of(way.name) / way.name / "truth.json").exists():
            continue
        started = time.monotonic()
        outcome = make(way, args.output)
        print(f"{way.name}: {outcome} ({time.monotonic() - started:.1f} s)", flush=True)
    if not args.list:
        print(f"{write_manifest(args.output)} jobs in {args.output}/manifest.jsonl")


if __name__ == "__main__":
    main()
