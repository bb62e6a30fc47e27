"""Silent data corruption: what is found, who is named, and what is left alone."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from prism.recover.checkpoint.corruption import CorruptionConfig, CorruptionGuard  # noqa: E402
from prism.recover.checkpoint.corruption.judging import (  # noqa: E402
    Norm,
    NormHistory,
    find_odd_bits,
    find_odd_norms,
    find_outliers,
    judge_repeated,
)
from prism.recover.checkpoint.corruption.measuring import Sketch, sketch  # noqa: E402
from prism.recover.checkpoint.ranks import Ranks  # noqa: E402

CONFIG = CorruptionConfig(every_steps=5, checks_per_probe=1)


def bits_of(*values: int) -> list[Sketch]:
    return [Sketch(norm=1.0, bits=value) for value in values]


@pytest.mark.parametrize(
    ("values", "odd"), [((7, 7, 7), ()), ((7, 8, 7), (1,)), ((7, 8), (0, 1)), ((1, 2, 3), (0, 1, 2)), ((7,), ())]
)
def test_the_majority_says_which_replica_is_wrong(values, odd):
    assert find_odd_bits(bits_of(*values)) == odd


def test_results_that_differ_by_rounding_accuse_nobody():
    told = [Sketch(norm=1.0 + n * 1e-6, bits=n) for n in range(4)]
    assert find_odd_norms(told, CONFIG) == ()
    assert find_odd_norms([*told, Sketch(norm=1.1, bits=9)], CONFIG) == (4,)
    assert find_odd_norms([*told, Sketch(norm=math.nan, bits=9)], CONFIG) == (4,)


def beside_usual(*values: float) -> list[Norm]:
    return [Norm(value=value, usual=usual) for value, usual in zip(values, (1.0, 2.0, 1.0, 1.0), strict=True)]


@pytest.mark.parametrize(
    ("norms", "suspects"),
    [
        ([1.0, 2.0, 1.0, 1.0], []),
        ([1.0, 100.0, 1.0, 1.0], [1]),
        ([90.0, 180.0, 90.0, 95.0], []),  # all of them: the model, not a rank
        ([1.0, 2.0, math.nan, 1.0], [2]),
        ([math.inf, 2.0, 1.0, 1.0], [0]),
    ],
)
def test_a_rank_alone_stands_out_and_a_shared_spike_does_not(norms, suspects):
    assert find_outliers(beside_usual(*norms), CONFIG) == suspects


@pytest.mark.parametrize(
    ("again", "guilty", "lost"),
    [
        ([1.0, 2.0, 1.0, 1.0], (1,), False),  # usual now: what it gave first was wrong
        ([1.0, 90.0, 1.0, 1.0], (), False),  # odd again: the data
        ([1.0, 10.0, 1.0, 1.0], (), False),  # less odd after a few steps of training on it: still the data
        ([20.0, 40.0, 20.0, 20.0], (1,), True),  # all rose, it among them: the damage it did
        ([math.nan] * 4, (), True),  # nothing can be computed again
        ([1.0, None, 1.0, 1.0], (), False),  # its batch is gone
    ],
)
def test_computing_again_tells_odd_data_from_a_flipped_bit(again, guilty, lost):
    judged = judge_repeated(beside_usual(1.0, 100.0, 1.0, 1.0), again, [1], CONFIG)
    assert (judged.guilty, judged.weights_lost) == (guilty, lost)


def test_what_stands_out_does_not_become_usual():
    history = NormHistory(CONFIG)
    assert not any(history.stands_out(history.judge(1.0)) for _ in range(10))
    assert all(history.stands_out(history.judge(100.0)) for _ in range(100))
    assert history.judge(1.0).usual == 1.0


@settings(max_examples=60)
@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64]),
    st.integers(0, 63),
    st.integers(0, 99),
)
def test_every_single_flipped_bit_changes_the_sum(dtype, bit, place):
    tensor = torch.arange(100, dtype=torch.float32).to(dtype)
    before = sketch([tensor, torch.ones(3)]).bits
    size = 8 * tensor.element_size()
    integers = {16: torch.int16, 32: torch.int32, 64: torch.int64}[size]
    mask = 1 << (bit % size)
    tensor.view(integers)[place] ^= mask - (1 << size) if bit % size == size - 1 else mask
    assert sketch([tensor, torch.ones(3)]).bits != before


class Training:
    """A linear model on data that is much the same in every step."""

    def __init__(self, ranks: Ranks | None = None, *, fused: bool = False) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.guard = CorruptionGuard(self.model, self.optimizer, CONFIG, ranks=ranks)

    def loss_of(self, batch):
        return self.model(batch).square().mean()

    def step(self, step: int, batch, damage=lambda model: None):
        self.optimizer.zero_grad()
        self.loss_of(batch).backward()
        damage(self.model)
        found = self.guard.after_backward(step, self.loss_of, batch)
        self.optimizer.step()
        return found or self.guard.after_step(step)


def warm(training: Training) -> None:
    for step in range(1, 13):
        assert training.step(step, torch.randn(16, 8)) is None


def test_a_flipped_gradient_is_proven_by_computing_it_again():
    training = Training()
    warm(training)

    def flip(model):
        model.weight.grad.view(torch.int32)[0, 3] ^= 1 << 30

    assert training.step(13, torch.randn(16, 8), flip) is None  # judged while the next step is under way
    found = training.step(14, torch.randn(16, 8))
    assert found is not None and (found.kind, found.ranks, found.step) == ("gradient", (0,), 13)
    assert (found.last_clean_step, found.proven) == (12, True)
    assert "rank 0" in str(found)


def test_odd_data_is_no_corruption():
    training = Training()
    warm(training)
    for step, batch in enumerate((torch.randn(16, 8) * 1e4, torch.full((16, 8), float("nan"))), start=13):
        assert training.step(step, batch) is None
    assert all(training.step(step, torch.randn(16, 8)) is None for step in range(15, 20))


def test_a_fused_optimizer_leaves_out_a_gradient_that_is_not_finite():
    training = Training(fused=True)
    warm(training)
    before = [p.clone() for p in training.model.parameters()]

    def flip(model):
        model.weight.grad[0, 3] = float("inf")

    assert training.step(13, torch.randn(16, 8), flip) is None
    assert all(torch.equal(old, new) for old, new in zip(before, training.model.parameters(), strict=True))
    found = training.step(14, torch.randn(16, 8))
    assert found is not None and (found.kind, found.ranks, found.step) == ("gradient", (0,), 13)


def test_a_batch_that_was_overwritten_is_no_proof():
    training = Training()
    warm(training)
    batch = torch.randn(16, 8) * 1e4
    assert training.step(13, batch) is None
    batch.normal_()  # the buffer of the next batch: computing it again would give a usual norm
    assert all(training.step(step, batch) is None for step in range(14, 20))


def test_computing_again_leaves_no_trace():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
    )
    guard = CorruptionGuard(model, None, CONFIG)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    first = guard._compute(
        lambda batch: model(batch).sum(), torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    )
    again = guard._compute(
        lambda batch: model(batch).sum(), torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    )
    assert first.wait() == again.wait() and torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class ThreeRanks(Ranks):
    """Rank 0 of three, the others computing what it does; rank 2's replica may be wrong."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.world_size, self.wrong = 3, wrong

    def gather(self, value):
        if isinstance(value, Sketch) and self.wrong:
            return [value, value, Sketch(norm=value.norm * 1.5, bits=value.bits ^ 1)]
        return [value] * 3

    def from_rank(self, rank, value):
        return torch.ones(2, 8)


class OneOfThree(Ranks):
    """A rank of three whose peers have usual norms and the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.world_size, self.rank = 3, 1

    def gather(self, value):
        if not isinstance(value, dict):
            return [value] * 3
        calm = {step: (Norm(value=norm.usual or 1.0, usual=norm.usual), False) for step, (norm, _) in value.items()}
        return [calm, value, calm]

    def from_rank(self, rank, value):
        return torch.ones(2, 64) if value is None else value


@pytest.mark.parametrize("wrong", [False, True])
def test_a_replica_that_differs_is_named(wrong: bool):
    training = Training(ThreeRanks(wrong))
    found = [training.guard.after_step(step) for step in range(1, 6)]
    assert found[:4] == [None] * 4
    assert (found[4].kind, found[4].ranks) == ("replica", (2,)) if wrong else found[4] is None


@pytest.mark.parametrize("wrong", [False, True])
def test_a_rank_whose_result_of_a_shared_batch_differs_is_named(wrong: bool):
    training = Training(ThreeRanks(wrong))
    batch = torch.randn(16, 8)
    training.loss_of(batch).backward()
    found = training.guard.after_backward(5, training.loss_of, batch)
    assert (found.kind, found.ranks) == ("probe", (2,)) if wrong else found is None


@pytest.mark.parametrize("wrong", [False, True])
def test_a_gradient_that_stands_out_again_has_replicas_compared(wrong: bool):
    training = Training(ThreeRanks(wrong))
    for _ in range(11):
        training.guard._history.stands_out(training.guard._history.judge(1e-6))
    batch = torch.full((16, 8), float("inf"))
    assert training.step(12, batch) is None
    found = training.step(13, torch.randn(16, 8))
    assert (found.kind, found.ranks) == ("replica", (2,)) if wrong else found is None


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_on_a_gpu_no_step_waits_for_the_device_and_a_flip_is_found_a_few_steps_later():
    device = torch.device("cuda")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    guard = CorruptionGuard(model, optimizer, CorruptionConfig(every_steps=10, checks_per_probe=1), ranks=OneOfThree())
    batches = [torch.randn(16, 64, device=device) for _ in range(60)]

    def loss_of(batch):
        return model(batch).square().mean()

    found = {}
    for step, batch in enumerate(batches, start=1):
        # From here on any operation that waits for the device raises; computing again after a flip may wait.
        torch.cuda.set_sync_debug_mode("error" if 10 < step < 40 else "default")
        optimizer.zero_grad()
        loss_of(batch).backward()
        if step == 41:
            model[0].weight.grad[3, 5] = float("inf")
        found[step] = guard.after_backward(step, loss_of, batch)
        optimizer.step()
        found[step] = found[step] or guard.after_step(step)
    torch.cuda.set_sync_debug_mode("default")
    told = [(step, one) for step, one in found.items() if one is not None]
    when, first = told[0]
    assert 41 < when <= 53 and (first.step, first.kind, first.ranks) == (41, "gradient", (1,))


DDP_PROGRAM = """
import os, sys, traceback, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from prism.recover.checkpoint import CorruptionConfig, CorruptionGuard

def run(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=3)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = CorruptionGuard(model, optimizer, CorruptionConfig(every_steps=5, min_usual=3))
    loss_of = lambda batch: model(batch).square().mean()
    for step in range(1, 21):
        batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * 10 + rank))
        optimizer.zero_grad()
        if step == 7 and rank == 2:
            model.module.weight.data.view(torch.int32)[0, 3] ^= 1 << 5
        hook = model.module.register_forward_hook(lambda m, i, o: o * 1e6) if step == 13 and rank == 1 else None
        loss = loss_of(batch)
        if hook:
            hook.remove()
        loss.backward()
        found = guard.after_backward(step, loss_of, batch)
        optimizer.step()
        found = found or guard.after_step(step)
        if found:
            print("FOUND", rank, step, found.kind, *found.ranks, flush=True)
            for tensor in [*model.parameters(), *(t for e in optimizer.state.values() for t in e.values())]:
                dist.broadcast(tensor.data, 0)

pids = []
for rank in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run(rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    pids.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""


OWN_NORMS = """
import json, os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from prism.recover.checkpoint import CorruptionConfig, CorruptionGuard
from prism.recover.checkpoint.corruption import measuring

class Late(measuring.Reading):
    waits = 0  # for numbers that have not arrived, as on a device that is behind

    def __init__(self, values):
        super().__init__(values)
        self.asked = 0

    @property
    def ready(self):
        self.asked += 1
        return self.asked > 3

    def wait(self):
        Late.waits += self.asked <= 3
        return super().wait()

def count_calls(guard, model, step):
    calls = 0
    def note(frame, event, argument):
        nonlocal calls
        calls += event == "call" and "/prism/recover/" in frame.f_code.co_filename
    sys.setprofile(note)
    own = guard_step(guard, model, step)
    sys.setprofile(None)
    return calls, own

def guard_step(guard, model, step):
    batch = torch.randn(4, 32, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
    model.zero_grad()
    loss_of = lambda batch: model(batch).square().mean()
    loss_of(batch).backward()
    norm = guard._own_norm._norm if hasattr(guard._own_norm, "_norm") else torch.stack(guard._own_norm._norms).norm()
    with model.no_sync():
        alone = torch.autograd.grad(loss_of(batch), list(model.parameters()))
    assert torch.allclose(norm, torch.stack([one.norm() for one in alone]).norm()), "not this rank's own norm"
    assert guard.after_backward(step, loss_of, batch) is None and guard.after_step(step) is None

def run(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    from prism.recover.checkpoint.corruption import guard as module
    module.Reading = Late
    told = {}
    for name, layers, view in (("few", 2, False), ("many", 12, False), ("view", 12, True)):
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(layers)))
        model = DistributedDataParallel(net, bucket_cap_mb=0.004, gradient_as_bucket_view=view)
        guard = CorruptionGuard(model, None, CorruptionConfig(every_steps=1000))
        for step in range(1, 11):
            guard_step(guard, model, step)
        Late.waits = 0
        told[name] = [max(count_calls(guard, model, step)[0] for step in range(11, 15)), Late.waits]
    if rank == 0:
        print(json.dumps(told), flush=True)

pid = os.fork()
run(1 if pid == 0 else 0)
if pid == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_an_ordinary_step_makes_few_calls_however_many_buckets_and_waits_for_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OWN_NORMS, str(tmp_path / "rendezvous")], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    told = json.loads(done.stdout)
    (few, _), (many, _), (view, _) = told.values()
    # Every parameter is looked at once, by its gradient; nothing is called for a bucket.
    assert many == few and few < 60, told
    assert view > many, told
    assert all(waits == 0 for _, waits in told.values()), told


@pytest.mark.slow
def test_three_ranks_of_ddp_find_a_flipped_weight_and_a_wrong_forward_pass(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DDP_PROGRAM, str(tmp_path / "rendezvous")], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found = sorted(line for line in done.stdout.splitlines() if line.startswith("FOUND 0"))
    assert found == ["FOUND 0 10 replica 2", "FOUND 0 14 gradient 1"], done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("operation", ["SUM", "AVG"])
def test_on_a_gpu_the_norm_of_gradients_that_are_averaged_in_place_is_that_before_the_average(
    tmp_path, monkeypatch, operation
):
    """With one rank the average changes nothing, so that both can be compared, in every step and with many buckets.

    A group of one would not divide; it is told that it is one of two, so that NCCL does. That shows that NCCL takes the
    operation in DDP's hook and gives back the gradients, not that it divides by the number of ranks of a larger group.
    """
    import torch.distributed as dist

    from prism.recover.checkpoint.corruption.measuring import gradients_of, norm_of
    from prism.recover.checkpoint.corruption.own_norm import own_norm_of

    plain, operations = dist.all_reduce, set()

    def noted(*args, op, **options):
        operations.add(op)
        return plain(*args, op=op, **options)

    monkeypatch.setattr(dist, "all_reduce", noted)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(24))).cuda()
        ddp = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        own = own_norm_of(ddp)
        if operation == "AVG":
            own._share = 0.5
        found, expected = [], []
        for step in range(30):
            net.zero_grad()
            ddp(torch.full((64, 1024), 1.0 + step, device="cuda")).square().mean().backward()
            found.append(own.take())
            expected.append(norm_of(gradients_of(net)))
        torch.testing.assert_close(torch.stack(found), torch.stack(expected))
        assert operations == {getattr(dist.ReduceOp, operation)}
    finally:
        dist.destroy_process_group()


SAME_AVERAGES = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from prism.recover.checkpoint.corruption import CorruptionGuard

def train(guarded):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    model = DistributedDataParallel(net, bucket_cap_mb=0.001, gradient_as_bucket_view=True)
    guard = CorruptionGuard(model) if guarded else None
    for step in range(1, 5):
        model.zero_grad()
        batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        loss_of = lambda batch: model(batch).square().mean()
        loss_of(batch).backward()
        assert guard is None or guard.after_backward(step, loss_of, batch) is None
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])

rank = next((n for n in (1, 2) if os.fork() == 0), 0)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=3)
assert torch.equal(train(False), train(True)), "the guard changed the gradients"
dist.barrier()
print(f"RANK {rank} SAME", flush=True)
os._exit(0)
"""


def test_gradients_that_are_averaged_in_place_keep_every_bit_under_the_guard(tmp_path):
    """By three, for which a division and a multiplication by the third differ in the last bit."""
    done = subprocess.run(
        [sys.executable, "-c", SAME_AVERAGES, str(tmp_path / "rendezvous")], capture_output=True, text=True, timeout=600
    )
    assert "RANK 0 SAME" in done.stdout, done.stderr[-2_000:]
