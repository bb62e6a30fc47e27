"""How often each situation names the culprits: python -m proving.benchmarks.hangs.fit FOLDER...

FOLDER holds cases as proving.benchmarks.hangs.make writes them, each with its truth.json, or one truth.json for all of
its cases. Printed are the counts that
prism.evidence.traces.reliability holds: cases in which exactly the culprits were named, and all cases, by situation.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from prism.evidence.traces import find_hang, read_dump
from prism.evidence.traces.files import find_kind
from prism.evidence.traces.rank_logs import find_first_failed, find_silent, read_rank_logs
from prism.evidence.traces.reliability import Situation


def main() -> None:
    """Count all cases of the folders and print the table."""
    counts: dict[Situation, list[bool]] = defaultdict(list)
    for case, culprits in list_cases([Path(folder) for folder in sys.argv[1:]]):
        for situation, named in read_situations(case):
            counts[situation].append(named == culprits)
    for situation, right in sorted(counts.items()):
        print(f"{situation}: ({sum(right)}, {len(right)})")


def list_cases(folders: list[Path]) -> Iterator[tuple[Path, set[int]]]:
    """Folders of cases and the ranks at fault in them."""
    for truth in sorted(path for folder in folders for path in folder.rglob("truth.json")):
        told = json.loads(truth.read_text())
        if "culprits" in told:
            yield truth.parent, {int(rank) for rank in told["culprits"]}
        else:
            yield from ((truth.parent / "cases" / name, set(facts["culprits"])) for name, facts in told.items())


def read_situations(case: Path) -> list[tuple[Situation, set[int]]]:
    """What dumps and logs of a case each show, and whom they name."""
    found: list[tuple[Situation, set[int]]] = []
    dumps = [read_dump(p) for p in sorted(case.iterdir()) if find_kind(p) == "dumps"]
    alive: frozenset[int] = frozenset()
    if dumps:
        hang = find_hang(dumps)
        alive = hang.alive
        found.append((hang.situation, set(hang.ranks)))
    logs = read_rank_logs(case.glob("rank_*.log"))
    failed, silent = find_first_failed(logs), find_silent(logs, alive)
    if failed:
        by_size = next(log for log in logs if log.rank == failed[0]).is_mismatch
        found.append(("failed_by_size" if by_size else "failed_first", set(failed)))
    elif silent:
        found.append(("silent", set(silent)))
    return found


if __name__ == "__main__":
    main()
