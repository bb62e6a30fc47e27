"""Which job tables of a folder load as they are, and what `prism characterize` reads from each.

    python proving/benchmarks/characterize_tables.py FOLDER [FOLDER ...]

Give it public traces as downloaded, or a site's exports. Prints one line per file: the format it was taken for, jobs,
GPU jobs, GPU-hours, seconds taken; or the one line that says why it is none.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from prism.datacenter.characterize import characterize
from prism.errors import InputError

_TABLES = (".csv", ".txt", ".json", ".jsonl", ".parquet", ".swf", ".gz", ".zst", ".tsv", "")


def main() -> None:
    """Try every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    folders = parser.parse_args().folders
    every = (path for folder in folders for path in sorted(folder.rglob("*")))
    files = [path for path in every if path.suffix in _TABLES and path.is_file()]
    loaded = 0
    print(f"{'table':40} {'format':18} {'jobs':>10} {'GPU jobs':>10} {'GPU-hours':>14} {'s':>6}")
    for path in files:
        began = time.perf_counter()
        try:
            report = characterize(path)
        except InputError as error:
            print(f"{path.name[:40]:40} {str(error).split(': ', 1)[-1][:110]}")
            continue
        loaded += 1
        found, kind = report.study.summary, report.trace.columns.format
        counts = f"{found.jobs:10,} {found.gpu_jobs:10,} {found.gpu_hours:14,.1f}"
        print(f"{path.name[:40]:40} {kind:18} {counts} {time.perf_counter() - began:6.2f}")
    print(f"{loaded} of {len(files)} loaded")


if __name__ == "__main__":
    main()
