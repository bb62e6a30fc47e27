"""Write captures with their truths: python -m proving.benchmarks.world_c OUT --seed N [--only NAME]."""

from __future__ import annotations

import argparse
import time
import zlib
from pathlib import Path

import numpy as np

from .capture import simulate, write
from .kinds import KINDS


def main() -> None:
    """Parse, simulate each kind, write it, and print a line about it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="kinds whose names start with this")
    arguments = parser.parse_args()
    for name, kind in KINDS.items():
        if arguments.only and not name.startswith(arguments.only):
            continue
        began = time.perf_counter()
        rng = np.random.default_rng([arguments.seed, zlib.crc32(name.encode())])
        capture = kind(rng)
        made = simulate(capture, rng)
        write(made, capture.fabric, arguments.out / name)
        steps = [len(job["steps"]) for job in made.truth["jobs"]]
        spent = time.perf_counter() - began
        print(f"{name}: {made.flows.height} records, steps {steps}, {spent:.1f} s", flush=True)


if __name__ == "__main__":
    main()
