"""Building blocks of captures: a site with free hosts, and programs of plausible sizes for its network."""

from __future__ import annotations

import numpy as np

from proving.benchmarks.world.execution import Health
from proving.benchmarks.world.experts import Experts
from proving.benchmarks.world.fabric import Fabric, FabricConfig, build_fabric
from proving.benchmarks.world.life import Habits, Job, Phase, Program
from proving.benchmarks.world.pipelines import Pipeline
from proving.benchmarks.world.programs import DDP, FSDP, DiLoCo
from proving.benchmarks.world.ring_attention import RingAttention


class Site:
    """A fabric whose hosts are given out in a random order, as a busy scheduler does."""

    def __init__(self, rng: np.random.Generator, config: FabricConfig):
        self.rng = rng
        self.fabric: Fabric = build_fabric(config, rng)
        self.free = rng.permutation(config.num_hosts).tolist()
        # Time that a program needs for its bytes, against a host with eight 400 Gbit/s NICs.
        self.thin = 3200 / (config.nics_per_host * config.nic_gbit)

    def take(self, count: int) -> list[int]:
        """Hosts that no job has; a scheduler hands ranks out in the order of host names."""
        taken, self.free = self.free[:count], self.free[count:]
        if len(taken) < count:
            raise ValueError(f"the site has {len(taken)} free hosts left, and {count} are wanted: enlarge num_hosts")
        return sorted(taken) if self.rng.random() < 0.5 else taken

    def job(self, name: str, hosts: list[int] | int, program: Program, **about: object) -> Job:
        """A job that runs from before the capture to after it."""
        taken = self.take(hosts) if isinstance(hosts, int) else hosts
        phase = Phase(hosts=taken, program=program, begin=-float(self.rng.uniform(1, 6)))
        return Job(name=name, phases=[phase], **{"health": self.health(), **about})  # type: ignore[arg-type]

    def health(self, **about: object) -> Health:
        """Ranks that differ by 1 to 2.5 % from one pass to the next."""
        return Health(**{"jitter": float(self.rng.uniform(0.01, 0.025)), **about})  # type: ignore[arg-type]

    def slow_gpu(self, factor: tuple[float, float] = (1.2, 1.5)) -> Health:
        """One GPU of the second host computes late."""
        per_host = self.fabric.config.gpus_per_host
        rank = per_host + int(self.rng.integers(per_host))
        return self.health(slow={rank: float(self.rng.uniform(*factor))})

    def slow_host(self, index: int, factor: tuple[float, float] = (1.2, 1.4)) -> Health:
        """All GPUs of one host compute late."""
        per_host = self.fabric.config.gpus_per_host
        value = float(self.rng.uniform(*factor))
        return self.health(slow={index * per_host + gpu: value for gpu in range(per_host)})

    def ddp(self, **about: object) -> DDP:
        """125M to 1.3B parameters: 0.2 to 0.6 s a step on current GPUs."""
        shape = [(24, 2048), (24, 1536), (36, 1280)][int(self.rng.integers(3))]
        if self.thin > 3:
            shape = [(12, 768), (24, 1024)][int(self.rng.integers(2))]
        forward = float(self.rng.uniform(0.1, 0.16))
        channels = max(2, self.fabric.config.nics_per_host)
        sized = {"layers": shape[0], "hidden": shape[1], "forward": forward, "channels": channels, "width": 4}
        return DDP(**{**sized, **about})  # type: ignore[arg-type]

    def fsdp(self, **about: object) -> FSDP:
        """A 3B to 13B model: a layer of 218 million parameters in bfloat16 is 416 MB."""
        layers, size, forward = [(26, 160, 0.009), (32, 416, 0.012), (40, 605, 0.016)][int(self.rng.integers(3))]
        if self.thin > 3:
            layers, size, forward = 24, 64, 0.014
        channels = max(2, self.fabric.config.nics_per_host)
        sized = {"layers": layers, "layer_mb": float(size), "forward": forward * float(self.rng.uniform(0.9, 1.2))}
        return FSDP(**{**sized, "channels": channels, **about})  # type: ignore[arg-type]

    def pipeline(self, pp: int, **about: object) -> Pipeline:
        """A 13B to 70B model, 4,096 tokens a microbatch."""
        forward = float(self.rng.uniform(0.02, 0.035))
        activation = 8.0 if self.thin <= 3 else 4.0
        gradient = float(self.rng.choice([700, 1100, 2200])) / max(1.0, self.thin / 2)
        sized = {"pp": pp, "microbatches": int(self.rng.choice([8, 12])), "forward": forward}
        return Pipeline(**{**sized, "activation_mb": activation, "gradient_mb": gradient, **about})  # type: ignore[arg-type]

    def ring_attention(self, cp: int, **about: object) -> RingAttention:
        """Long sequences: 16 MB of keys and values per rank, block and layer."""
        return RingAttention(**{"cp": cp, "keys_mb": 16.0 / max(1.0, self.thin / 2), **about})  # type: ignore[arg-type]

    def experts(self, **about: object) -> Experts:
        """8,192 tokens of 4,096 values to two experts each: 128 MB per rank and all-to-all."""
        sized = {"tokens_mb": 96.0 / max(1.0, self.thin), "dense_mb": 800.0 / max(1.0, self.thin)}
        return Experts(**{**sized, **about})  # type: ignore[arg-type]

    def diloco(self, **about: object) -> DiLoCo:
        return DiLoCo(**{"channels": max(2, self.fabric.config.nics_per_host), **about})  # type: ignore[arg-type]

    def habits(self, **about: object) -> Habits:
        return Habits(**{"read_mb": float(self.rng.uniform(20, 80)), **about})  # type: ignore[arg-type]
