"""Time collectives as a member of `emulate_turns`: one process per rank, a few rounds at a time.

usage: emulate_collectives.py GATE NAME ROUNDS_PER_TURN PLAN POINTS
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from emulate_turns import Dismissed, Gate, pin  # noqa: E402
from prism.emulate.inside.measure import Bench, join_groups, list_points  # noqa: E402
from prism.emulate.inside.measure_plan import read_plan  # noqa: E402


def main() -> None:
    """Measure in turns; rank 0 writes the points."""
    address, name, per_turn, asked, answer = sys.argv[1:]
    torch.set_num_threads(1)
    gate, plan = Gate(address, name), read_plan(Path(asked))
    dist.init_process_group(plan.backend)
    bench = Bench(plan, join_groups(plan))
    bench.time_round()  # makes the connections
    pin()
    rounds: list[torch.Tensor] = []
    try:
        while True:
            gate.wait()
            rounds += [bench.time_round() for _ in range(int(per_turn))]
            points = list_points(plan, bench.average(rounds))
            if dist.get_rank() == 0:
                Path(answer).write_text(json.dumps([asdict(point) for point in points]))
    except Dismissed:
        os._exit(0)


if __name__ == "__main__":
    main()
