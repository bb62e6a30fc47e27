"""The order in which a pipeline stage runs its microbatches, and the order in which all stages' work can be solved."""

from __future__ import annotations

from dataclasses import dataclass

FORWARD, BACKWARD, WEIGHTS = "F", "B", "W"


@dataclass(frozen=True)
class Work:
    """One piece of work of a stage: the pass, the microbatch, and the model chunk (interleaved schedules)."""

    name: str
    microbatch: int
    chunk: int = 0


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Work]:
    """Megatron's and torch's 1F1B: warm up, alternate, drain."""
    warm = min(stages - stage - 1, microbatches)
    work = [Work(FORWARD, i) for i in range(warm)]
    for i in range(microbatches - warm):
        work += [Work(FORWARD, warm + i), Work(BACKWARD, i)]
    return work + [Work(BACKWARD, i) for i in range(microbatches - warm, microbatches)]


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[Work]:
    """Megatron's interleaved 1F1B: `stages` microbatches pass one chunk before the next chunk takes them."""
    total = microbatches * chunks
    warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)

    def nth(name: str, index: int) -> Work:
        chunk = index % (stages * chunks) // stages
        microbatch = index // (stages * chunks) * stages + index % stages
        return Work(name, microbatch, chunk if name == FORWARD else chunks - 1 - chunk)

    work = [nth(FORWARD, i) for i in range(warm)]
    for i in range(total - warm):
        work += [nth(FORWARD, warm + i), nth(BACKWARD, i)]
    return work + [nth(BACKWARD, i) for i in range(total - warm, total)]


def zero_bubble(stage: int, stages: int, microbatches: int) -> list[Work]:
    """ZB-H1: 1F1B whose weight gradients are put off and fill the drain; later stages put off more."""
    work, behind = [], 0
    for item in one_forward_one_backward(stage, stages, microbatches):
        work.append(item)
        if item.name == BACKWARD:
            behind += 1
            if behind > stage:
                work.append(Work(WEIGHTS, item.microbatch - behind + 1))
                behind -= 1
    return work + [Work(WEIGHTS, microbatches - behind + i) for i in range(behind)]


def source_of(work: Work, stage: int, stages: int, chunks: int) -> tuple[int, Work] | None:
    """The stage and work whose result must arrive first; None for the model's input and for local results."""
    if work.name == FORWARD:
        if stage > 0:
            return stage - 1, work
        return (stages - 1, Work(FORWARD, work.microbatch, work.chunk - 1)) if work.chunk else None
    if work.name == BACKWARD:
        if stage < stages - 1:
            return stage + 1, work
        return (0, Work(BACKWARD, work.microbatch, work.chunk + 1)) if work.chunk < chunks - 1 else None
    return None


@dataclass(frozen=True)
class Compute:
    """Solve one piece of work: it follows the stage's previous work, its input and the previous work's send."""

    stage: int
    work: Work
    node: int
    before: int  # the stage's previous work; -1: the step's begin
    arrival: int  # the transfer that brings the input; -1: none
    sent: int  # the transfer of the previous work's result; -1: none


@dataclass(frozen=True)
class Transfer:
    """Solve one send: it needs the sender's result and a receiver that has posted its buffer."""

    number: int
    src_stage: int
    dst_stage: int
    node: int  # the work that made the result
    posted: int  # the receiver's work before it waits for this; -1: the step's begin
    backward: bool


def solve_order(orders: list[list[Work]], chunks: int, blocking: bool) -> list[Compute | Transfer]:
    """All stages' work and sends, so that each comes after what it depends on.

    Blocking is 1F1B without overlap: a send waits for the receiver to reach it, and the sender waits for its end.
    """
    stages = len(orders)
    nodes = {(s, w): (s, i) for s, order in enumerate(orders) for i, w in enumerate(order)}
    first = [sum(len(o) for o in orders[:s]) for s in range(stages)]
    source = {(s, w): source_of(w, s, stages, chunks) for s, w in nodes}
    users = {(v[0], v[1]): k for k, v in source.items() if v is not None}
    numbers: dict[tuple[int, Work], int] = {}  # by the sender's work
    plan: list[Compute | Transfer] = []
    done = [0] * stages

    def send(maker: tuple[int, Work]) -> bool:
        """Plan the transfer of a result if both its ends have come so far."""
        if maker in numbers:
            return True
        user = users[maker]
        made, wanted = nodes[maker], nodes[user]
        if done[made[0]] <= made[1] or (blocking and done[wanted[0]] < wanted[1]):
            return False
        numbers[maker] = len(numbers)
        posted = first[wanted[0]] + wanted[1] - 1 if wanted[1] and blocking else -1
        node = first[made[0]] + made[1]
        back = maker[1].name == BACKWARD
        plan.append(Transfer(numbers[maker], maker[0], user[0], node, posted, back))
        return True

    while any(done[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for s in range(stages):
            while done[s] < len(orders[s]):
                i = done[s]
                work = orders[s][i]
                maker = source[(s, work)]
                previous = (s, orders[s][i - 1]) if i else None
                waits_for_send = blocking and previous in users
                needs = [m for m in (maker, previous if waits_for_send else None) if m is not None]
                ready = [send(m) for m in needs]  # all of them, because each may plan a transfer
                if not all(ready):
                    break
                before = first[s] + i - 1 if i else -1
                arrival = numbers[maker] if maker else -1
                sent = numbers[previous] if waits_for_send and previous else -1
                plan.append(Compute(s, work, first[s] + i, before, arrival, sent))
                done[s] += 1
                moved = True
        if not moved:
            raise RuntimeError("the schedule waits for itself")
    for maker in users:
        send(maker)
    return plan
