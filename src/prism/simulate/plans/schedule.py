"""Pipeline schedules: the order in which a stage runs forward, backward and weight-gradient tasks."""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """One piece of a stage's work: F forward, B backward, W weight gradients of one chunk and micro-batch."""

    phase: str
    chunk: int
    microbatch: int


def order_tasks(schedule: str, stage: int, num_stages: int, num_chunks: int, microbatches: int) -> list[Task]:
    """The tasks of one stage in program order; under zero_bubble B makes only the gradients of the input."""
    if schedule == "gpipe" or num_stages == 1:
        forward = [Task("F", 0, m) for m in range(microbatches)]
        if num_stages == 1:  # nothing to pipeline: accumulate micro-batch by micro-batch
            return [task for m in range(microbatches) for task in (Task("F", 0, m), Task("B", 0, m))]
        return forward + [Task("B", 0, m) for m in range(microbatches)]
    if schedule == "interleaved":
        return _interleaved(stage, num_stages, num_chunks, microbatches)
    tasks = _one_forward_one_backward(stage, num_stages, microbatches)
    return _split_weights(tasks, num_stages - stage - 1) if schedule == "zero_bubble" else tasks


def _one_forward_one_backward(stage: int, num_stages: int, microbatches: int) -> list[Task]:
    warmup = min(num_stages - stage - 1, microbatches)
    tasks = [Task("F", 0, m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        tasks += [Task("F", 0, m + warmup), Task("B", 0, m)]
    return tasks + [Task("B", 0, m) for m in range(microbatches - warmup, microbatches)]


def _interleaved(stage: int, num_stages: int, num_chunks: int, microbatches: int) -> list[Task]:
    """Megatron's order: rounds of `num_stages` micro-batches pass through one chunk after the other."""
    total = microbatches * num_chunks
    per_round = num_stages * num_chunks

    def piece(index: int, phase: str) -> Task:
        inside = index % per_round
        chunk = inside // num_stages
        microbatch = index // per_round * num_stages + inside % num_stages
        return Task(phase, chunk if phase == "F" else num_chunks - 1 - chunk, microbatch)

    warmup = min(total, (num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages)
    tasks = [piece(i, "F") for i in range(warmup)]
    for i in range(total - warmup):
        tasks += [piece(i + warmup, "F"), piece(i, "B")]
    return tasks + [piece(i, "B") for i in range(total - warmup, total)]


def _split_weights(tasks: list[Task], held_back: int) -> list[Task]:
    """ZB-H1: weight gradients wait so that they fill the gaps of the cool-down (Qi et al., ICLR 2024)."""
    out: list[Task] = []
    waiting: list[Task] = []
    forwards = sum(task.phase == "F" for task in tasks)
    for task in tasks:
        out.append(task)
        forwards -= task.phase == "F"
        if task.phase == "B":
            waiting.append(Task("W", task.chunk, task.microbatch))
            if len(waiting) > held_back or not forwards:
                out.append(waiting.pop(0))
    return out + waiting
