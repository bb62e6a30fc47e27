"""Silent data corruption: single bits flipped in a training of several replicas, and what the guard makes of them.

    python proving/benchmarks/corruption.py  # CPU, a few minutes on two cores: few runs, few clean steps
    python proving/benchmarks/corruption.py --device cuda --seed 7 --clean-steps 0  # 500 flips, cost on 300M parameters
    python proving/benchmarks/corruption.py --device cuda --runs 0 --cost-turns 0     # 10,000 clean steps

The replicas are real modules with optimizers of their own, in one process on one device; their gradients are averaged
as DDP does. Every run starts from a state of the clean training, flips one bit of one rank (in a weight, an output of a
layer, a gradient before or after averaging, or a moment of AdamW) at a random step between two comparisons, and trains
on to the next comparison. Half of the runs flip any bit, half one of sign and exponent, since most others do nothing.
A flip matters if the loss on held-out data then differs by more than 1 % from the clean training at the same step, or
is not finite. "Named" counts only the right rank.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from machine import describe_machine
from prism.recover.checkpoint.corruption import CorruptionConfig, CorruptionGuard
from prism.recover.checkpoint.corruption.judging import (
    Norm,
    NormHistory,
    find_odd_bits,
    find_odd_norms,
    find_outliers,
    judge_repeated,
)
from prism.recover.checkpoint.corruption.measuring import (
    Sketch,
    SketchReading,
    gradients_of,
    norm_of,
    sketch,
    state_of,
)
from prism.recover.checkpoint.ranks import Ranks

SITES = ("weights", "activations", "gradients", "optimizer state")
_WORDS = 64
_MATTERS = 0.01
_DELAY = 3  # steps until a norm is judged: two that the device is behind, and one for the vote
_INTEGERS = {2: torch.int16, 4: torch.int32}


class Layer(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))


class Model(torch.nn.Module):
    """A small decoder over a vocabulary of few words."""

    def __init__(self, width: int, layers: int, words: int = _WORDS) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.layers = torch.nn.ModuleList(Layer(width, max(1, width // 64)) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x)
        return cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens[:, 1:].flatten())


def make_batch(number: int, rows: int, length: int, device: str) -> torch.Tensor:
    """Sequences that a model can learn: each word follows from the one before, with some noise."""
    generator = torch.Generator().manual_seed(number)
    first = torch.randint(0, _WORDS, (rows, 1), generator=generator)
    steps = torch.randint(1, 4, (rows, length), generator=generator).cumsum(1)
    return ((first + 5 * steps) % _WORDS).to(device)


@dataclass(frozen=True, kw_only=True)
class Flip:
    """One bit of one rank at one step."""

    site: str
    rank: int
    step: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Alarm:
    kind: str
    ranks: tuple[int, ...]
    proven: bool = True


@dataclass(kw_only=True)
class Behind:
    """A step whose norms are judged some steps later, as on a GPU."""

    step: int
    norms: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A moment of the clean training."""

    state: list[torch.Tensor]
    usual: list[list[float]]
    behind: list[Behind]


class Replicas:
    """Several ranks of a data-parallel training in one process, with the guard's checks and its delay."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(0)
        first = Model(options.width, options.layers).to(options.device)
        self.models = [
            first,
            *(Model(options.width, options.layers).to(options.device) for _ in range(options.ranks - 1)),
        ]
        for model in self.models[1:]:
            model.load_state_dict(first.state_dict())
        self.optimizers = [torch.optim.AdamW(m.parameters(), lr=options.lr, fused=True) for m in self.models]
        self.config = CorruptionConfig(every_steps=options.every)
        self.histories = [NormHistory(self.config) for _ in self.models]
        self.behind: deque[Behind] = deque()
        self.held_out = make_batch(10**9, 32, options.length, options.device)

    def batch(self, step: int, rank: int) -> torch.Tensor:
        return make_batch(step * self.options.ranks + rank, self.options.rows, self.options.length, self.options.device)

    def step(self, step: int, flip: Flip | None = None) -> Alarm | None:
        """One step of all ranks; what the checks of it say."""
        for rank, model in enumerate(self.models):
            mine = flip is not None and flip.step == step and flip.rank == rank
            if mine and flip.site in ("weights", "optimizer state"):
                flip_state(model, self.optimizers[rank], flip)
            with flipped_output(model, flip) if mine and flip.site == "activations" else nothing():
                model.zero_grad()
                model(self.batch(step, rank)).backward()
            if mine and flip.site == "gradients" and flip.seed % 2:
                flip_one(gradients_of(model), flip.seed)
        self.behind.append(Behind(step=step, norms=torch.stack([norm_of(gradients_of(m)) for m in self.models])))
        alarm = self.judge_norms(_DELAY)
        if alarm is None and step % (self.config.every_steps * self.config.checks_per_probe) == 0:
            alarm = self.probe(step)
        # As the guard does: a fused optimizer leaves out a step whose gradient is not finite on any rank.
        held = (~self.behind[-1].norms.isfinite()).any().float()
        self.average()
        if flip is not None and flip.step == step and flip.site == "gradients" and not flip.seed % 2:
            flip_one(gradients_of(self.models[flip.rank]), flip.seed)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.found_inf = held
            optimizer.step()
        return alarm or (self.check_replicas() if step % self.config.every_steps == 0 else None)

    def judge_norms(self, delay: int) -> Alarm | None:
        """Judge the steps that are old enough, with the weights of now."""
        while len(self.behind) > delay:
            late = self.behind.popleft()
            norms = [h.judge(value) for h, value in zip(self.histories, late.norms.tolist(), strict=True)]
            odd = sum(h.stands_out(norm) for h, norm in zip(self.histories, norms, strict=True))
            suspects = find_outliers(norms, self.config) if odd else []
            if suspects:
                return self.repeat(late.step, norms, suspects) or self.check_replicas()
        return None

    def repeat(self, step: int, norms: list[Norm], suspects: list[int]) -> Alarm | None:
        again = [self.compute(rank, self.batch(step, rank)).norm for rank in range(len(self.models))]
        judged = judge_repeated(norms, again, suspects, self.config)
        if judged.guilty or judged.weights_lost:
            return Alarm(kind="gradient", ranks=judged.guilty or tuple(suspects), proven=bool(judged.guilty))
        return None

    def probe(self, step: int) -> Alarm | None:
        turn = step // self.config.every_steps % len(self.models)
        shared = self.batch(step, turn)[: max(1, int(self.options.rows * self.config.probe_share))]
        odd = find_odd_norms([self.compute(rank, shared) for rank in range(len(self.models))], self.config)
        return Alarm(kind="probe", ranks=odd) if odd else None

    def compute(self, rank: int, batch: torch.Tensor) -> Sketch:
        model = self.models[rank]
        return sketch(torch.autograd.grad(model(batch), list(model.parameters())))

    def check_replicas(self) -> Alarm | None:
        pairs = zip(self.models, self.optimizers, strict=True)
        readings = [SketchReading(state_of(model, optimizer), norm=False) for model, optimizer in pairs]
        odd = find_odd_bits([reading.wait() for reading in readings])
        return Alarm(kind="replica", ranks=odd, proven=len(odd) == 1) if odd else None

    def average(self) -> None:
        """The mean of all ranks' gradients, the same bits for everyone, as an all-reduce gives them."""
        columns = [gradients_of(model) for model in self.models]
        total = [one.clone() for one in columns[0]]
        for column in columns[1:]:
            torch._foreach_add_(total, column)
        torch._foreach_div_(total, float(len(columns)))
        for column in columns:
            torch._foreach_copy_(column, total)

    @torch.no_grad()
    def loss(self) -> float:
        """What a user would see: the mean over replicas."""
        return sum(float(model(self.held_out)) for model in self.models) / len(self.models)

    def keep(self) -> Kept:
        return Kept(
            state=[tensor.detach().clone() for tensor in state_of(self.models[0], self.optimizers[0])],
            usual=[list(history._values) for history in self.histories],
            behind=list(self.behind),
        )

    @torch.no_grad()
    def load(self, kept: Kept) -> None:
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for mine, theirs in zip(state_of(model, optimizer), kept.state, strict=True):
                mine.copy_(theirs)
        for history, values in zip(self.histories, kept.usual, strict=True):
            history._values.clear()
            history._values.extend(values)
        self.behind = deque(kept.behind)


@torch.no_grad()
def flip_one(tensors: list[torch.Tensor], seed: int) -> None:
    """Flip one bit of one element, every element as likely as any other."""
    chance = random.Random(seed)
    sizes = [tensor.numel() for tensor in tensors]
    tensor = chance.choices(tensors, sizes)[0]
    bits = tensor.data.view(-1).view(_INTEGERS[tensor.element_size()])
    width = 8 * tensor.element_size()
    exponents = 9 if chance.random() < 0.5 else width  # sign and exponent of float32 and bfloat16
    bit = width - 1 - chance.randrange(exponents)
    bits[chance.randrange(len(bits))] ^= (1 << bit) - ((1 << width) if bit == width - 1 else 0)


def flip_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, flip: Flip) -> None:
    if flip.site == "weights":
        flip_one(list(model.parameters()), flip.seed)
        return
    moments = [entry[name] for entry in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    flip_one(moments, flip.seed)


@contextmanager
def flipped_output(model: torch.nn.Module, flip: Flip) -> Iterator[None]:
    """One bit of the output of one layer, in this forward pass alone."""
    chance = random.Random(flip.seed)
    leaves = [module for module in model.modules() if not list(module.children())]

    def damage(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        changed = output.clone()
        flip_one([changed], flip.seed)
        return output + (changed - output).detach() if bool(changed.isfinite().all()) else changed

    handle = chance.choice(leaves).register_forward_hook(damage)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def nothing() -> Iterator[None]:
    yield


def run_flips(replicas: Replicas, options: argparse.Namespace) -> None:
    """Flip bits, one run each, and say which were found."""
    warm = options.every * max(2, -(-options.warm // options.every))
    for step in range(1, warm + 1):
        assert replicas.step(step) is None, "an alarm in the clean training"
    kept = []
    for step in range(warm + 1, warm + options.every + 1):
        kept.append(replicas.keep())
        assert replicas.step(step) is None, "an alarm in the clean training"
    clean, last = replicas.loss(), warm + options.every
    print(f"clean training: loss {clean:.4f} after {last} steps; flips of seed {options.seed}")
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    chance = random.Random(options.seed)
    for number in range(options.runs):
        flip = Flip(
            site=SITES[number % len(SITES)],
            rank=chance.randrange(options.ranks),
            step=chance.randrange(warm + 1, last + 1),
            seed=chance.randrange(2**31),
        )
        replicas.load(kept[flip.step - warm - 1])
        alarm = None
        for step in range(flip.step, last + 1):
            alarm = alarm or replicas.step(step, flip)
        loss = replicas.loss()
        for step in range(last + 1, last + 1 + _DELAY):  # norms of the last steps are judged only now
            alarm = alarm or replicas.step(step)
        matters = not abs(loss - clean) <= _MATTERS * clean
        found, named = alarm is not None, alarm is not None and alarm.ranks == (flip.rank,)
        for place, flag in enumerate((True, matters, matters and found, matters and named, found)):
            counts[flip.site][place] += flag
        if matters and not named and options.verbose:
            print(f"  missed: {flip}, loss {loss:.4f}, {alarm}")
    print(f"{'flipped in':>16} {'runs':>6} {'matter':>7} {'detected':>9} {'rank named':>11} {'detected of all':>16}")
    for site in (*SITES, "all"):
        row = counts[site] if site != "all" else [sum(c[i] for c in counts.values()) for i in range(5)]
        print(f"{site:>16} {row[0]:>6} {row[1]:>7} {row[2]:>9} {row[3]:>11} {row[4]:>16}")


def run_clean(replicas: Replicas, options: argparse.Namespace) -> None:
    """Train on without any fault and count alarms."""
    alarms = [step for step in range(1, options.clean_steps + 1) if replicas.step(step) is not None]
    print(f"false alarms in {options.clean_steps} clean steps of {options.ranks} ranks: {len(alarms)} {alarms[:5]}")


class ThreeAlike(Ranks):
    """One rank of three that all do the same, so that a single process does all that a rank of three does."""

    def __init__(self) -> None:
        super().__init__()
        self.world_size, self.rank = 3, 1  # rank 1 gives its micro-batch at the first check

    def gather(self, value):
        return [value] * 3


class Training:
    """DDP of one process, with or without the guard."""

    def __init__(self, options: argparse.Namespace, *, guarded: bool) -> None:
        torch.manual_seed(0)
        words = 32_000 if options.device == "cuda" else 512
        self.options = options
        self.model = DistributedDataParallel(
            Model(options.cost_width, options.cost_layers, words).to(options.device),
            gradient_as_bucket_view=options.bucket_view,
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(0, words, (options.cost_rows, 513), device=options.device)
        config = CorruptionConfig(every_steps=options.every)
        self.steps = config.every_steps * config.checks_per_probe
        self.guard = CorruptionGuard(self.model, self.optimizer, config, ranks=ThreeAlike()) if guarded else None

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        return autocast_loss(self.model, batch, self.options.device)

    def run(self) -> float:
        """The time of a step, over those from one probe to the next; on a CPU the time that it computed."""
        clock = time.perf_counter if self.options.device == "cuda" else time.process_time
        start = clock()
        for step in range(1, self.steps + 1):
            self.optimizer.zero_grad()
            self.loss_of(self.tokens).backward()
            alarm = self.guard.after_backward(step, self.loss_of, self.tokens) if self.guard else None
            self.optimizer.step()
            alarm = alarm or (self.guard.after_step(step) if self.guard else None)
            assert alarm is None, alarm
        if self.options.device == "cuda":
            torch.cuda.synchronize()
        return (clock() - start) / self.steps


def measure_cost(options: argparse.Namespace) -> None:
    """One rank's step with and without the guard, in turns, at one check in `every` steps."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if options.device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        plain, guarded = Training(options, guarded=False), Training(options, guarded=True)
        for one in (plain, guarded):
            one.run()
        turns = [(plain.run(), guarded.run()) for _ in range(options.cost_turns)]
        dist.destroy_process_group()
    without, with_guard = (sorted(column)[len(turns) // 2] for column in zip(*turns, strict=True))
    changes = [100 * (second / first - 1) for first, second in turns]
    count = sum(p.numel() for p in plain.model.parameters())
    print(
        f"cost on {count / 1e6:.0f}M parameters: {1e3 * without:.2f} ms a step, with the guard "
        f"{1e3 * with_guard:.2f} ms: {100 * (with_guard / without - 1):+.2f} % "
        f"(single turns {min(changes):+.2f} to {max(changes):+.2f} %; one check in {options.every} steps)"
    )


def autocast_loss(model: torch.nn.Module, batch: torch.Tensor, device: str) -> torch.Tensor:
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return model(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--clean-steps", type=int)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--warm", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=33)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost-width", type=int)
    parser.add_argument("--cost-layers", type=int)
    parser.add_argument("--cost-rows", type=int)
    parser.add_argument("--cost-turns", type=int, default=5)
    parser.add_argument("--bucket-view", action="store_true", help="cost with DDP's gradient_as_bucket_view=True")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    sizes = {
        "runs": (40, 500),
        "clean_steps": (200, 10_000),
        "cost_width": (128, 1024),
        "cost_layers": (2, 16),
        "cost_rows": (2, 16),
    }
    for name, (small, large) in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, large if gpu else small)
    if not gpu:
        torch.set_num_threads(1)
    print(f"{describe_machine()}; {torch.cuda.get_device_name(0) if gpu else 'CPU'}; torch {torch.__version__}")
    start = time.perf_counter()
    if options.runs:
        run_flips(Replicas(options), options)
    print(f"  ({time.perf_counter() - start:.0f} s)", flush=True)
    if options.clean_steps:
        run_clean(Replicas(options), options)
        print(f"  ({time.perf_counter() - start:.0f} s)", flush=True)
    if options.cost_turns:
        measure_cost(options)


if __name__ == "__main__":
    main()
