"""Real gloo hangs: the root rank by Prism, beside PyTorch's own Flight Recorder analyser on the same dumps.

    python -m proving.benchmarks.hangs.make FOLDER --seeds 0:200
    python proving/benchmarks/investigate_hangs.py FOLDER/open [--verbose]

A case is right where the first verdict names the rank that went wrong and nobody else. `dumps` is Flight Recorder
alone, `logs` dumps and rank logs, `folder` all that the job left behind (with stacks where they were taken).
PyTorch's analyser (`torchfrtrace`) prints what it finds; it is given a case where the rank is among those that it names
as missing or mismatched, which is more than it would be worth to a person.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from machine import describe_machine
from prism.errors import PrismError
from prism.evidence.fusion import investigate
from prism.evidence.traces import find_hang, read_dump
from prism.evidence.traces.files import find_kind

TORCH_ENDED: Counter[str] = Counter()  # how PyTorch's analyser ended where it did not finish
READERS = ("dumps", "logs", "folder", "torchfrtrace")


def by_dumps(case: Path) -> set[str]:
    """Ranks that Prism names from Flight Recorder alone."""
    dumps = [read_dump(p) for p in sorted(case.iterdir()) if find_kind(p) == "dumps"]
    return {str(r) for r in find_hang(dumps).ranks}


def by_folder(case: Path) -> set[str]:
    """Ranks that Prism names from everything in the folder."""
    try:
        return {s.id for s in investigate(case).fused.culprits if s.type == "rank"}
    except PrismError:
        return set()


def by_logs(case: Path) -> set[str]:
    """Ranks that Prism names from a folder without stacks."""
    with tempfile.TemporaryDirectory() as aside:
        for path in case.iterdir():
            if path.name not in ("stacks.txt", "truth.json"):
                (Path(aside) / path.name).symlink_to(path.resolve())
        return by_folder(Path(aside))


def by_torch(case: Path) -> set[str]:
    """Ranks that PyTorch's analyser names; it needs all dumps, so it is told to go on with those that are there."""
    import logging

    from torch.distributed.flight_recorder import fr_trace

    ranks = sorted(int(p.name.rsplit("_", 1)[1]) for p in case.glob("nccl_trace_rank_*"))
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    logger = logging.getLogger("torch.distributed.flight_recorder")
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        sys.argv = ["torchfrtrace", str(case), "-p", "nccl_trace_rank_", "--allow-incomplete-ranks"]
        logger.addHandler(handler)
        try:
            fr_trace.main()
        except (Exception, SystemExit) as error:
            TORCH_ENDED[type(error).__name__] += 1
    logger.removeHandler(handler)
    logging.getLogger().removeHandler(handler)
    text = said.getvalue()
    named: set[str] = set()
    for found in re.finditer(
        r"(?:[Mm]issing|[Dd]umps? (?:from )?|[Mm]ismatch\w*|culprit|error)[^\n]{0,200}?\{([\d, ]+)\}", text
    ):
        named |= {r.strip() for r in found.group(1).split(",") if r.strip()}
    for found in re.finditer(r"(?:[Mm]issing|culprit|[Mm]ismatch\w*)[^\n]{0,80}?ranks? \[?([\d, ]+)\]?", text):
        named |= {r.strip() for r in found.group(1).split(",") if r.strip()}
    return named & {str(r) for r in range(max(ranks, default=0) + 16)}


def main() -> None:
    """Print how many cases each reader gets right, by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verbose", action="store_true", help="say which cases are wrong")
    parser.add_argument("--readers", default=",".join(READERS))
    given = parser.parse_args()
    print(describe_machine())
    readers = {"dumps": by_dumps, "logs": by_logs, "folder": by_folder, "torchfrtrace": by_torch}
    right: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    among: dict[str, list[bool]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)
    for case in sorted(given.folder.glob("case-*")):
        if not (case / "truth.json").exists():
            continue
        truth = json.loads((case / "truth.json").read_text())
        if not truth["fired"]:
            continue
        for name in given.readers.split(","):
            begin = time.process_time()
            named = readers[name](case)
            spent[name] += time.process_time() - begin
            culprits = set(truth["culprits"])
            good = culprits <= named if name == "torchfrtrace" else named == culprits
            right[truth["kind"]][name].append(good)
            among[name].append(culprits <= named and len(named) <= 3)
            if given.verbose and not good:
                told = f"rank {truth['culprits'][0]}, {name} says {sorted(named)}, lost {truth['dumps_lost']}"
                print(f"  {case.name} {truth['kind']}: {told}")
    names = given.readers.split(",")
    for kind, by in sorted(right.items()):
        print(f"{kind}: " + ", ".join(f"{n} {sum(by[n])} of {len(by[n])}" for n in names))
    for name in names:
        flat = [g for by in right.values() for g in by[name]]
        print(
            f"{name}: {sum(flat)} of {len(flat)} ({sum(flat) / max(len(flat), 1):.1%}), among at most three named "
            f"{sum(among[name])}, {spent[name]:.1f} s"
        )
    if TORCH_ENDED:
        print(f"torchfrtrace ended with an error in {sum(TORCH_ENDED.values())} cases: {dict(TORCH_ENDED)}")


if __name__ == "__main__":
    main()
