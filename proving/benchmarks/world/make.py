"""Write captures of this world: numbered folders with flows.parquet, topology.csv and truth.json.

python -m proving.benchmarks.world.make OUT --seed 1 --captures 24 [--first 0]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from proving.benchmarks.world.captures import Capture, Made, make_capture
from proving.benchmarks.world.catalogue import FINE
from proving.benchmarks.world.coarse import COARSE
from proving.benchmarks.world.lives import LIVES

CATALOGUE: tuple[Callable[[np.random.Generator], Capture], ...] = (*FINE, *LIVES, *COARSE)


def make_numbered(number: int, seed: int) -> Made:
    """A capture by its number; numbers past the catalogue repeat it with other hosts, sizes and jitter."""
    source = CATALOGUE[number % len(CATALOGUE)]
    first, second = np.random.SeedSequence([seed, number]).spawn(2)
    return make_capture(source(np.random.default_rng(first)), int(second.generate_state(1)[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--captures", type=int, default=len(CATALOGUE))
    parser.add_argument("--first", type=int, default=0, help="number of the first capture")
    arguments = parser.parse_args()
    for number in range(arguments.first, arguments.first + arguments.captures):
        begin = time.monotonic()
        made = make_numbered(number, arguments.seed)
        made.write(arguments.out / f"{number:02d}")
        jobs = ", ".join(f"{j['name']} ({j['gpus']} GPUs, {len(j['steps'])} steps)" for j in made.truth["jobs"])
        print(f"{number:02d} {made.flows.height:>9,} records {time.monotonic() - begin:5.1f} s  {jobs}", flush=True)


if __name__ == "__main__":
    main()
