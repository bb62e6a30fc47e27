"""One step of each kind of training, on the clocks of its hosts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .fabric import Floats
from .jobs import Life

FORWARD = 1 / 3  # of a step's computation; the backward pass takes twice as long
OPTIMIZER = 0.02


def edge_bytes(life: Life, gigabytes: float, ranks: int, passes: int) -> float:
    """Bytes per edge and rail of a ring over `ranks` GPUs: passes * (n-1)/n of the data, spread over the rails."""
    return passes * (ranks - 1) / ranks * gigabytes * 1e9 / len(life.job.rails)


def bucket_shares(count: int) -> Floats:
    """DDP's buckets in the order they fill: the first is small, the last holds what is left."""
    shares = np.ones(count)
    shares[0], shares[-1] = 0.25, 0.6
    return shares / shares.sum()


def ddp(life: Life) -> None:
    """Backward fills buckets; each is all-reduced (ZeRO-1/2: reduce-scattered) while the backward pass goes on."""
    job = life.job
    once = job.compute / job.accumulate
    now = life.compute(once * (job.accumulate - 1 + FORWARD), life.clock)
    stream = life.clock
    for number, share in enumerate(bucket_shares(job.buckets)):
        now = life.compute(once * (1 - FORWARD) / job.buckets, now)
        ready = np.maximum(now, stream)
        gigabytes = job.gigabytes * share
        if job.tree and number % 2 == 0:
            stream = life.talk.tree(life.hosts, ready, gigabytes * 1e9 / len(job.rails), 1)
        else:
            passes = 1 if job.zero1 else 2
            stream = life.talk.ring(
                life.group(), ready[None], edge_bytes(life, gigabytes, life.ranks, passes), passes, 1
            )[0]
    now = life.compute(job.compute * OPTIMIZER, np.maximum(now, stream))
    if job.zero1:
        now = life.talk.ring(life.group(), now[None], edge_bytes(life, job.gigabytes, life.ranks, 1), 1, 3)[0]
    life.clock = now


def fsdp(life: Life) -> None:
    """All-gather each unit one ahead of its use, forward and backward; then reduce-scatter (FSDP2, ZeRO-3).

    With shard_hosts below the number of hosts, replicas of the shards all-reduce (HSDP).
    """
    job = life.job
    count = len(life.hosts)
    shard = job.shard_hosts if job.shard_hosts > 1 or job.program == "hsdp" else count
    groups = life.hosts.reshape(count // shard, shard)
    unit = job.gigabytes / job.buckets
    shard_ranks = shard * job.gpus
    gather_bytes = edge_bytes(life, unit, shard_ranks, 1)
    replica_bytes = edge_bytes(life, unit / shard, count // shard, 2)

    def gather(ready: Floats) -> Floats:
        return life.talk.ring(groups, ready.reshape(groups.shape), gather_bytes, 1, 1).reshape(count)

    def reduce(ready: Floats) -> Floats:
        done = life.talk.ring(groups, ready.reshape(groups.shape), gather_bytes, 1, 2)
        if shard < count:
            done = life.talk.ring(groups.T, done.T, replica_bytes, 2, 3).T
        return done.reshape(count)

    once = job.compute / job.accumulate / job.buckets
    now = stream = life.clock
    for _ in range(job.accumulate):
        arrived = stream = gather(np.maximum(now, stream))
        for u in range(job.buckets):
            begin = np.maximum(now, arrived)
            if u + 1 < job.buckets:
                arrived = stream = gather(np.maximum(begin, stream))
            now = life.compute(once * FORWARD, begin)
        arrived = now  # the last unit is still there
        for u in range(job.buckets):
            begin = np.maximum(now, arrived)
            if u + 1 < job.buckets:
                arrived = stream = gather(np.maximum(begin, stream))
            now = life.compute(once * (1 - FORWARD), begin)
            stream = reduce(np.maximum(now, stream))
    life.clock = life.compute(job.compute * OPTIMIZER, np.maximum(now, stream))


def rlhf(life: Life) -> None:
    """Generation of uneven length without training traffic, then one update by FSDP."""
    life.clock = life.clock + life.job.generate * life.rng.uniform(0.75, 1.0, len(life.hosts))
    fsdp(life)


def order_1f1b(stage: int, stages: int, microbatches: int, chunks: int) -> list[tuple[str, int, int]]:
    """Megatron's order of (pass, microbatch, chunk) of one stage, plain or interleaved 1F1B."""
    total = microbatches * chunks
    warm = stages - stage - 1 if chunks == 1 else (stages - stage - 1) * 2 + (chunks - 1) * stages
    warm = min(warm, total)

    def unit(k: int, forward: bool) -> tuple[str, int, int]:
        if chunks == 1:
            return ("F" if forward else "B", k, 0)
        chunk = k // stages % chunks
        micro = k // (stages * chunks) * stages + k % stages
        return ("F", micro, chunk) if forward else ("B", micro, chunks - 1 - chunk)

    order = [unit(k, True) for k in range(warm)]
    for k in range(total - warm):
        order += [unit(warm + k, True), unit(k, False)]
    return order + [unit(k, False) for k in range(total - warm, total)]


def pipeline(life: Life) -> None:
    """1F1B across hosts, then gradients per stage, tied embeddings, and the norm of all gradients."""
    job = life.job
    stages, chunks = job.pp, job.chunks
    replicas = len(life.hosts) // stages
    at = np.arange(len(life.hosts)).reshape(stages, replicas)
    clock = life.clock.reshape(stages, replicas).copy()
    weights = np.array(job.stage_weights or (1.0,) * stages)
    once = job.compute / job.microbatches / chunks
    orders = [order_1f1b(s, stages, job.microbatches, chunks) for s in range(stages)]
    done: dict[tuple[str, int, int, int], Floats] = {}
    place = [0] * stages
    rail_bytes = job.activation_mb * 1e6 / len(job.rails)

    def advance(stage: int) -> bool:
        if place[stage] == len(orders[stage]):
            return False
        what, micro, chunk = orders[stage][place[stage]]
        source = upstream(what, stage, micro, chunk, stages, chunks)
        begin = clock[stage]
        if source is not None:
            if source not in done:
                return False
            sent = done[source] if job.eager else np.maximum(done[source], begin)
            if source[1] != stage:
                comm = 10 + (what == "B")
                sent = life.talk.send(life.hosts[at[source[1]]], life.hosts[at[stage]], sent, rail_bytes, comm, "pp")
            begin = np.maximum(begin, sent)
        seconds = once * weights[stage] * (FORWARD if what == "F" else 1 - FORWARD)
        clock[stage] = done[what, stage, micro, chunk] = life.compute(seconds, begin, at[stage])
        place[stage] += 1
        return True

    while any(advance(s) for s in range(stages)):
        pass
    assert all(p == len(o) for p, o in zip(place, orders, strict=True)), "the schedule does not end"
    grouped = life.hosts.reshape(stages, replicas)
    passes = 1 if job.zero1 else 2
    if replicas > 1:
        size = edge_bytes(life, job.gigabytes, replicas, passes)
        clock = np.stack(
            [life.talk.ring(grouped[s : s + 1], clock[s : s + 1], size, passes, 1)[0] for s in range(stages)]
        )
    if job.tied:
        pairs, ready = grouped[[0, -1]].T, clock[[0, -1]].T
        clock[[0, -1]] = life.talk.ring(pairs, ready, edge_bytes(life, job.gigabytes * 0.25, 2, 2), 2, 5, "embedding").T
    clock = life.talk.ring(grouped.T, clock.T, 64.0, 2, 7, "").T  # the norm: a few bytes, waits for all stages
    clock = np.broadcast_to(clock.max(axis=0), clock.shape)
    now = life.compute(job.compute * OPTIMIZER, clock.reshape(-1))
    if job.zero1 and replicas > 1:
        now = life.talk.ring(
            grouped, now.reshape(grouped.shape), edge_bytes(life, job.gigabytes, replicas, 1), 1, 3
        ).reshape(-1)
    life.clock = now


def upstream(
    what: str, stage: int, micro: int, chunk: int, stages: int, chunks: int
) -> tuple[str, int, int, int] | None:
    """The unit whose output this one needs."""
    if what == "F":
        if stage:
            return "F", stage - 1, micro, chunk
        return ("F", stages - 1, micro, chunk - 1) if chunk else None
    if stage < stages - 1:
        return "B", stage + 1, micro, chunk
    return ("B", 0, micro, chunk + 1) if chunk < chunks - 1 else ("F", stage, micro, chunk)


def context(life: Life) -> None:
    """Ring attention: K and V go around the hosts of a CP group while each computes; then gradients of all hosts."""
    job = life.job
    groups = life.hosts.reshape(-1, job.cp)
    layers = 6
    now = life.clock
    for factor, volume in ((FORWARD, 1.0), (1 - FORWARD, 2.0)):
        for _ in range(layers * job.accumulate):
            for hop in range(job.cp):
                ready = now.reshape(groups.shape)
                arrived = ready
                if hop + 1 < job.cp:  # a receive is posted when the receiver reaches this hop
                    begin = np.maximum(ready, np.roll(ready, -1, axis=1))
                    size = job.activation_mb * volume * 1e6 / len(job.rails)
                    sent = life.talk.send(groups, np.roll(groups, -1, axis=1), begin, size, 20, "cp")
                    arrived = np.maximum(sent, np.roll(sent, 1, axis=1))
                now = life.compute(job.compute * factor / layers / job.cp / job.accumulate, now)
                now = np.maximum(now, arrived.reshape(-1))
    size = edge_bytes(life, job.gigabytes, len(life.hosts), 2) / 2
    for _ in range(2):
        now = life.talk.ring(life.group(), now[None], size, 2, 1)[0]
    life.clock = life.compute(job.compute * OPTIMIZER, now)


def experts(life: Life) -> None:
    """MoE: tokens go to the hosts of their experts and back, per layer and pass; then dense gradients of all hosts."""
    job = life.job
    groups = life.hosts.reshape(-1, job.ep)
    layers = 4
    now = life.clock
    others = ~np.eye(job.ep, dtype=bool)
    for factor in (FORWARD, 1 - FORWARD):
        for _ in range(layers):
            loads = life.rng.dirichlet(np.full(job.ep, 60.0), size=(len(groups), job.ep)) * job.ep
            sizes = loads * others * job.activation_mb * 1e6 / len(job.rails) / job.ep
            for part, way in ((0.4, sizes), (0.6, np.swapaxes(sizes, 1, 2))):
                now = life.compute(job.compute * factor / layers * part, now)
                now = life.talk.alltoall(groups, now.reshape(groups.shape), way, 30).reshape(-1)
    now = life.talk.ring(life.group(), now[None], edge_bytes(life, job.gigabytes, life.ranks, 2), 2, 1)[0]
    replicas = len(groups)
    if replicas > 1:  # expert gradients: over the hosts with the same experts
        size = edge_bytes(life, job.gigabytes * 0.5, replicas, 2)
        now = life.talk.ring(groups.T, now.reshape(groups.shape).T, size, 2, 3).T.reshape(-1)
    life.clock = life.compute(job.compute * OPTIMIZER, now)


PROGRAMS: dict[str, Callable[[Life], None]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "hsdp": fsdp,
    "rlhf": rlhf,
    "pipeline": pipeline,
    "context": context,
    "experts": experts,
}
