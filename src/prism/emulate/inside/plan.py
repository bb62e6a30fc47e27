"""The plan of one emulated process: its rank, what to record, what to replay."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

PLAN_VARIABLE = "PRISM_EMULATE_PLAN"
STEPPED = "stepped"
"""A file in the journal of a run: when its first rank ended its first step."""

Routing = Literal["balanced", "zipf", "recorded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One thing that a virtual rank does wrong, from step `step` on."""

    kind: Literal["slow", "hang", "die", "wrong_collective", "wrong_size"]
    rank: int
    step: int
    factor: float = 2.0  # of slow


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything a process of an emulation needs to know; written as JSON by the launcher."""

    rank: int
    world_size: int
    gpus_per_node: int
    output: str  # file for what was recorded
    warmup: int = 3
    iterations: int = 5
    address: str = ""  # of the exchange; empty when the rank is alone
    token: str = ""
    live_ranks: tuple[int, ...] = ()
    twins: tuple[int, ...] = ()  # for each rank the live rank that stands for it; empty until classes are known
    recorded: bool = False  # an earlier run answers for the ranks that do not run now
    in_step: bool = False  # live ranks start every iteration together
    steps: int = 0  # stop after this many iterations, unmeasured; 0: after warm-up and measurement
    most_calls: int = 0  # stop at this call, if the iterations did not end before it; 0: at none
    track_memory: bool = True
    timed: bool = True  # false where only calls are compared
    routing: Routing = "balanced"
    zipf_exponent: float = 1.0
    routing_counts: tuple[int, ...] = ()  # recorded: tokens of each expert or rank
    journal: str = ""  # folder that notes which files the script changed; empty: they are not watched
    snapshot: str = ""  # file for torch.cuda's memory snapshot
    schedule: str = ""  # live on CUDA: file with the completion rule of every communication op
    paced: bool = False  # live on CPU: the virtual peers are asked when each op ends
    faults: tuple[FaultPlan, ...] = field(default=())

    def to_json(self) -> str:
        """The plan as one JSON document."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunPlan:
        """Read what `to_json` wrote."""
        document: dict[str, Any] = json.loads(text)
        for name in ("live_ranks", "twins", "routing_counts"):
            document[name] = tuple(document[name])
        document["faults"] = tuple(FaultPlan(**fault) for fault in document["faults"])
        return cls(**document)

    def environment(self, num_devices: int) -> dict[str, str]:
        """The variables torchrun would set for this rank."""
        per_node = min(self.gpus_per_node, self.world_size)
        local = self.rank % per_node
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            # One GPU plays every local rank of a node, so scripts that select a device by LOCAL_RANK find it.
            "LOCAL_RANK": str(local % num_devices if num_devices else local),
            "LOCAL_WORLD_SIZE": str(per_node),
            "GROUP_RANK": str(self.rank // per_node),
            "GROUP_WORLD_SIZE": str(-(-self.world_size // per_node)),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "prism",
            "TORCH_DIST_INIT_BARRIER": "0",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }


def load_plan() -> RunPlan:
    """The plan of this process."""
    return RunPlan.from_json(Path(os.environ[PLAN_VARIABLE]).read_text())
