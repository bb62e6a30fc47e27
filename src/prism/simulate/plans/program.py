"""Write a job's step as an execution graph: what every pipeline stage computes and sends, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from prism.simulate.builder import GraphBuilder, ProgramBuilder
from prism.simulate.graph import Graph
from prism.simulate.plans.layout import RankLayout
from prism.simulate.plans.schedule import Task, order_tasks
from prism.simulate.plans.sizes import PARAM_BYTES, RankSizes

COMPUTE, FORWARD_IN, BACKWARD_IN, FORWARD_OUT, BACKWARD_OUT, GRADIENTS, PARAMETERS = range(7)
"""Streams; those for pipeline messages are used where they overlap with compute."""

_BARRIER_NS = 50_000  # summing one number over all ranks
_NORM_BYTES = 8


def build_step(layout: RankLayout, sizes: RankSizes, *, split_replicas: bool = False) -> Graph:
    """One training step; one class per stage, or per stage and replica if replicas must differ."""
    job = layout.job
    builder = GraphBuilder(job.id)
    copies = job.dp if split_replicas else 1
    for stage in range(job.pp):
        for _ in range(copies):
            StageWriter(builder.program(), layout, sizes, stage).write()
    classes = layout.stage * copies + (layout.replica if split_replicas else 0)
    builder.ranks(np.arange(job.num_gpus), classes, layout.host, layout.local)
    for group in layout.groups:
        builder.groups(group.slot, group.ranks, kind=group.kind)
    return builder.build()


@dataclass
class StageWriter:
    """Writes the program of one pipeline stage."""

    program: ProgramBuilder
    layout: RankLayout
    sizes: RankSizes
    stage: int

    def __post_init__(self) -> None:
        job = self.layout.job
        self.job = job
        self.layers = job.model.layers // (job.pp * job.num_chunks)
        self.sharded = job.sharding in ("fsdp", "hsdp") and self.layout.has("dp")
        self.shard_slot = "shard" if job.sharding == "hsdp" and self.layout.has("shard") else "dp"
        # Only traffic between hosts needs every single message; the rest is one op per micro-batch.
        self.by_layer = self.sharded or any(self.layout.crosses_hosts(slot) for slot in ("tp", "cp", "ep"))
        self.tasks = order_tasks(job.schedule, self.stage, job.pp, job.num_chunks, job.microbatches)
        backward = "W" if job.schedule == "zero_bubble" and job.pp > 1 else "B"
        self.last_backward = {t.chunk: t for t in self.tasks if t.phase == backward}
        # Megatron's 1F1B exchanges with its neighbour in one call and waits for it; the others overlap.
        self.paired = job.schedule == "1f1b"
        self.first_forwards = {t.chunk: t for t in reversed(self.tasks) if t.phase == "F"}

    def write(self) -> None:
        """The whole step."""
        job, program = self.job, self.program
        program.step = 0
        program.host("prepare", round(job.gap_ms * 1e6))
        self._announce_parameters()
        for before, task in zip([None, *self.tasks], self.tasks, strict=False):
            self._receive(task, before)
            self._run(task)
        self._send_last()
        self._finish()

    def _announce_parameters(self) -> None:
        """ZeRO-1/2 with overlap: updated parameters are gathered while the next step's forward runs."""
        if self.job.sharding in ("zero1", "zero2") and self.job.overlap:
            self.program.join(waiter=PARAMETERS, on=COMPUTE)  # not before the last step's update
            for slot, params in self._replicated():
                for size in self._buckets(params * self.job.num_chunks):
                    self.program.all_gather(slot, size * PARAM_BYTES, stream=PARAMETERS, name="gather parameters")

    # Pipeline messages

    def _neighbour(self, task: Task, inward: bool) -> tuple[str, int] | None:
        """Slot and position of the rank that a task's input comes from, or its output goes to."""
        if task.phase == "W":
            return None
        back = (task.phase == "F") == inward  # towards lower virtual stages
        virtual = task.chunk * self.job.pp + self.stage
        if virtual == 0 and back:
            return None
        if virtual == self.job.pp * self.job.num_chunks - 1 and not back:
            return None
        boundary = (self.stage - 1) % self.job.pp if back else self.stage
        return f"pp{boundary}", 0 if back else 1

    def _receive(self, task: Task, before: Task | None) -> None:
        """Send the output of the previous task, and receive the input of this one."""
        out = self._neighbour(before, inward=False) if before else None
        needed = self._neighbour(task, inward=True)
        if self.paired:
            self._exchange(out, needed)
            return
        if out is not None and before is not None:
            self._send_aside(out, before)
        if needed is not None:
            stream = FORWARD_IN if task.phase == "F" else BACKWARD_IN
            self.program.join(waiter=stream, on=COMPUTE)
            self.program.recv(needed[0], self.sizes.pipeline_bytes, peer=needed[1], stream=stream)
            self.program.join(waiter=COMPUTE, on=stream)

    def _exchange(self, out: tuple[str, int] | None, needed: tuple[str, int] | None) -> None:
        size = self.sizes.pipeline_bytes
        if out is not None and out == needed:
            with self.program.batch():
                self.program.send(out[0], size, peer=out[1])
                self.program.recv(needed[0], size, peer=needed[1])
            return
        if out is not None:
            self.program.send(out[0], size, peer=out[1])
        if needed is not None:
            self.program.recv(needed[0], size, peer=needed[1])

    def _send_aside(self, out: tuple[str, int], task: Task) -> None:
        stream = FORWARD_OUT if task.phase == "F" else BACKWARD_OUT
        self.program.join(waiter=stream, on=COMPUTE)
        self.program.send(out[0], self.sizes.pipeline_bytes, peer=out[1], stream=stream)

    def _send_last(self) -> None:
        last = self.tasks[-1]
        out = self._neighbour(last, inward=False)
        if out is not None and self.paired:
            self._exchange(out, None)
        elif out is not None:
            self._send_aside(out, last)
        for stream in (FORWARD_OUT, BACKWARD_OUT):
            if not self.paired and self.job.pp > 1:
                self.program.join(waiter=COMPUTE, on=stream)

    # Layers

    def _run(self, task: Task) -> None:
        """One task: its layers, with the collectives inside them, and gradients on their way when it is the last."""
        split = self.job.schedule == "zero_bubble" and self.job.pp > 1
        backward = self.sizes.backward_ns / (2 if split else 1)
        work = self.sizes.forward_ns if task.phase == "F" else backward
        name = {"F": "forward", "B": "backward", "W": "weights"}[task.phase]
        if task == self.first_forwards.get(task.chunk) and self.job.overlap and self.job.sharding in ("zero1", "zero2"):
            self.program.join(waiter=COMPUTE, on=PARAMETERS)
        sends_gradients = self.last_backward.get(task.chunk) == task or self._reduces_every_time(task)
        if self.by_layer and task.phase != "W":
            self._run_by_layer(task, name, work, sends_gradients)
        else:
            self._run_whole(task, name, work, sends_gradients and not self.sharded)
        if self._is_output(task):
            self.program.compute("loss", round(self.sizes.logits_ns * (1 if task.phase == "F" else 2)))

    def _reduces_every_time(self, task: Task) -> bool:
        """ZeRO-2 and FSDP keep no full gradients, so each micro-batch reduces its own."""
        return task.phase != "F" and (self.sharded or self.job.sharding == "zero2")

    def _is_output(self, task: Task) -> bool:
        last = self.stage == self.job.pp - 1 and task.chunk == self.job.num_chunks - 1
        return last and task.phase in "FB"

    def _run_whole(self, task: Task, name: str, work: float, sends_gradients: bool) -> None:
        """All layers as one op, cut into one piece per gradient bucket where gradients leave meanwhile."""
        buckets = self._gradient_buckets() if sends_gradients else []
        pieces = len(buckets) if self.job.overlap and buckets else 1
        for i in range(pieces):
            self.program.compute(name, round(work * self.layers / pieces))
            self._talk_inside_host(task, self.layers / pieces)
            if buckets and self.job.overlap:
                self._reduce(*buckets[i], stream=GRADIENTS)
        if not self.job.overlap and self.job.sharding == "zero2":
            for slot, size in buckets:
                self._reduce(slot, size, stream=COMPUTE)

    def _talk_inside_host(self, task: Task, layers: float) -> None:
        if task.phase == "W":
            return
        sizes, factor = self.sizes, 1 if task.phase == "F" else 2
        if self.layout.has("tp"):
            # Two all-reduces per layer and direction; only the sum of their times matters here.
            self.program.all_reduce("tp", round(2 * layers * sizes.activation_bytes))
        if self.layout.has("cp"):
            self._pass_on(round(factor * layers * (self.job.cp - 1) * sizes.kv_bytes))
        if self.layout.has("ep"):
            self.program.all_to_all("ep", round(2 * layers * sizes.exchange_bytes))

    def _run_by_layer(self, task: Task, name: str, work: float, sends_gradients: bool) -> None:
        history: list[int] = []
        unit = self.sizes.layer_params + self.sizes.expert_params
        # The outermost unit, embedding and output layer, stays gathered from forward to backward.
        root = self.sizes.embedding_params * (1 if self.job.model.tied else 2)
        if self.sharded and task.phase == "F":
            self._gather_shards(root, history)
        for _ in range(self.layers):
            if self.sharded:
                self._gather_shards(unit, history)
            self._attention(task, name, work)
            self._feed_forward(name, work)
            if self.sharded:
                history.append(self.program.record(stream=COMPUTE))
                if task.phase == "B":
                    self._reduce_shards(unit)
            elif sends_gradients and (self.job.overlap or self.job.sharding == "zero2"):
                for slot, params in self._replicated():
                    self._reduce(slot, params // self.layers, stream=GRADIENTS if self.job.overlap else COMPUTE)
        if self.sharded and task.phase == "B":
            self._reduce_shards(root)

    def _attention(self, task: Task, name: str, work: float) -> None:
        tp_crosses = self.layout.has("tp")
        if tp_crosses:
            self.program.all_gather("tp", self.sizes.activation_bytes, name="gather sequence")
        if self.layout.has("cp"):
            for _ in range(self.job.cp - 1):
                self.program.compute(f"{name} attention", round(work / 3 / self.job.cp))
                self._pass_on(self.sizes.kv_bytes * (1 if task.phase == "F" else 2))
            self.program.compute(f"{name} attention", round(work / 3 / self.job.cp))
        else:
            self.program.compute(f"{name} attention", round(work / 3))
        if tp_crosses:
            self.program.reduce_scatter("tp", self.sizes.activation_bytes, name="scatter sequence")

    def _feed_forward(self, name: str, work: float) -> None:
        if self.layout.has("tp"):
            self.program.all_gather("tp", self.sizes.activation_bytes, name="gather sequence")
        if self.layout.has("ep"):
            self.program.all_to_all("ep", self.sizes.exchange_bytes, name="dispatch")
        self.program.compute(f"{name} feed-forward", round(work * 2 / 3))
        if self.layout.has("ep"):
            self.program.all_to_all("ep", self.sizes.exchange_bytes, name="combine")
        if self.layout.has("tp"):
            self.program.reduce_scatter("tp", self.sizes.activation_bytes, name="scatter sequence")

    def _pass_on(self, size: int) -> None:
        """One turn of the context-parallel ring."""
        with self.program.batch():
            self.program.send("cp", size, shift=1)
            self.program.recv("cp", size, shift=self.job.cp - 1)

    # Gradients and parameters

    def _replicated(self) -> list[tuple[str, int]]:
        """Parameters of one chunk by the group that holds copies of them."""
        edge = self.sizes.embedding_params if self.stage in (0, self.job.pp - 1) else 0
        both = edge if self.job.pp > 1 or self.job.model.tied else 2 * edge
        dense = self.sizes.layer_params * self.layers + both // self.job.num_chunks
        found = [("dp", dense)]
        if self.sizes.expert_params:
            found.append(("expert_dp" if self.job.ep > 1 else "dp", self.sizes.expert_params * self.layers))
        return [(slot, params) for slot, params in found if self.layout.has(slot)]

    def _buckets(self, params: int) -> list[int]:
        count = max(1, min(64, round(params * self.job.grad_bytes / (self.job.bucket_mb * 2**20))))
        return [params // count] * count

    def _gradient_buckets(self) -> list[tuple[str, int]]:
        return [(slot, size) for slot, params in self._replicated() for size in self._buckets(params)]

    def _reduce(self, slot: str, params: int, stream: int) -> None:
        if stream != COMPUTE:
            self.program.join(waiter=stream, on=COMPUTE)
        size = params * self.job.grad_bytes
        if self.job.sharding == "none":
            self.program.all_reduce(slot, size, stream=stream, name="sum gradients")
        else:
            self.program.reduce_scatter(slot, size, stream=stream, name="sum gradients")

    def _gather_shards(self, params: int, history: list[int]) -> None:
        """FSDP: gather a unit's parameters, at most two units ahead of compute."""
        if not self.job.overlap:
            self.program.all_gather(self.shard_slot, params * PARAM_BYTES, name="gather parameters")
            return
        if len(history) >= 2:
            self.program.wait(history[-2], stream=PARAMETERS)
        self.program.all_gather(self.shard_slot, params * PARAM_BYTES, stream=PARAMETERS, name="gather parameters")
        self.program.join(waiter=COMPUTE, on=PARAMETERS)

    def _reduce_shards(self, params: int) -> None:
        stream = GRADIENTS if self.job.overlap else COMPUTE
        if stream != COMPUTE:
            self.program.join(waiter=stream, on=COMPUTE)
        size = params * self.job.grad_bytes
        self.program.reduce_scatter(self.shard_slot, size, stream=stream, name="sum gradients")
        if self.shard_slot == "shard" and self.layout.has("copies"):
            share = size // self.job.shard_ranks
            self.program.all_reduce("copies", share, stream=stream, name="sum gradients over copies")

    def _finish(self) -> None:
        """The end of a step: the remaining gradients, tied weights, the norm, the update."""
        job, program, sizes = self.job, self.program, self.sizes
        if job.overlap or self.sharded:
            program.join(waiter=COMPUTE, on=GRADIENTS)
        elif job.sharding != "zero2":  # zero2 has already sent them with each micro-batch
            for slot, size in self._gradient_buckets() * job.num_chunks:
                self._reduce(slot, size, stream=COMPUTE)
        if self.layout.has("embedding") and self.stage in (0, job.pp - 1):
            program.all_reduce("embedding", sizes.embedding_params * job.grad_bytes, name="sum tied embedding")
        if self.layout.has("tp"):
            norms = 2 * self.layers * job.num_chunks * job.model.hidden * job.grad_bytes
            program.all_reduce("tp", norms, name="sum layer norms")
        if self.layout.has("world"):
            if job.norm_traffic:
                program.all_reduce("world", _NORM_BYTES, name="gradient norm")
            else:
                program.collective("barrier", "world", 0, name="gradient norm", duration_ns=_BARRIER_NS)
        program.compute("optimizer", round(sizes.optimizer_ns))
        if job.sharding in ("zero1", "zero2") and not job.overlap:
            for slot, params in self._replicated():
                for size in self._buckets(params * job.num_chunks):
                    program.all_gather(slot, size * PARAM_BYTES, name="gather parameters")
        program.host("pause", 0)


def pause_after(graph: Graph, pauses_ns: dict[int, int]) -> Graph:
    """The graph with the pauses of its steps, for checkpoints and evaluations."""
    if not pauses_ns:
        return graph
    pause = pl.col("step").replace_strict(pauses_ns, default=0, return_dtype=pl.Int64)
    duration = pl.when(pl.col("name") == "pause").then(pause).otherwise("duration_ns").alias("duration_ns")
    return replace(graph, ops=graph.ops.with_columns(duration))
