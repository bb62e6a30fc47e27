"""Silent data corruption: single bits flipped in a training of several replicas, and what the guard makes of them.

    python benchmarks/corruption.py                     # CPU, a few minutes on two cores: few runs, few clean steps
    python benchmarks/corruption.py --device cuda --clean-steps 0 --cost-turns 0      # 500 flips
    python benchmarks/corruption.py --device cuda --runs 0    # 10,000 clean steps, cost on a model of 300M parameters

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
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from machine import describe_machine
from prism.recover.checkpoint.corruption import (
    CorruptionConfig,
    CorruptionGuard,
    NormHistory,
    find_odd_bits,
    find_odd_norms,
    gradients_of,
    measure_norm,
    sketch,
    state_of,
)

SITES = ("weights", "activations", "gradients", "optimizer state")
_WORDS = 64
_MATTERS = 0.01
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


class Replicas:
    """Several ranks of a data-parallel training in one process, with the guard's checks."""

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
        self.optimizers = [torch.optim.AdamW(m.parameters(), lr=options.lr, foreach=True) for m in self.models]
        self.config = CorruptionConfig(every_steps=options.every)
        self.history = NormHistory(self.config)
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
        alarm = self.check_gradients(step)
        self.average()
        if flip is not None and flip.step == step and flip.site == "gradients" and not flip.seed % 2:
            flip_one(gradients_of(self.models[flip.rank]), flip.seed)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return alarm or (self.check_replicas() if step % self.config.every_steps == 0 else None)

    def check_gradients(self, step: int) -> Alarm | None:
        norms = [measure_norm(gradients_of(model)) for model in self.models]
        suspects = self.history.find_outliers(norms)
        if not suspects:
            self.history.add(norms)
            return self.probe(step) if step % self.config.every_steps == 0 else None
        repeated = {rank: self.compute(rank, self.batch(step, rank)).norm for rank in suspects}
        guilty = [rank for rank in suspects if self.history.is_usual(rank, norms, repeated[rank])]
        return Alarm(kind="gradient", ranks=tuple(guilty)) if guilty else self.check_replicas()

    def probe(self, step: int) -> Alarm | None:
        turn = step // self.config.every_steps % len(self.models)
        shared = self.batch(step, turn)[: max(1, self.options.rows // 4)]
        odd = find_odd_norms([self.compute(rank, shared) for rank in range(len(self.models))], self.config)
        return Alarm(kind="probe", ranks=odd) if odd else None

    def compute(self, rank: int, batch: torch.Tensor):
        model = self.models[rank]
        return sketch(torch.autograd.grad(model(batch), list(model.parameters())))

    def check_replicas(self) -> Alarm | None:
        pairs = zip(self.models, self.optimizers, strict=True)
        odd = find_odd_bits([sketch(state_of(model, optimizer)) for model, optimizer in pairs])
        return Alarm(kind="replica", ranks=odd) if odd else None

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

    def keep(self) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in state_of(self.models[0], self.optimizers[0])]

    @torch.no_grad()
    def load(self, kept: list[torch.Tensor]) -> None:
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for mine, theirs in zip(state_of(model, optimizer), kept, strict=True):
                mine.copy_(theirs)


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
    usual = list(replicas.history._steps)
    states = []
    for step in range(warm + 1, warm + options.every + 1):
        states.append((replicas.keep(), list(replicas.history._steps)))
        assert replicas.step(step) is None, "an alarm in the clean training"
    clean = replicas.loss()
    print(f"clean training: loss {clean:.4f} after {warm + options.every} steps, {len(usual)} steps of history")
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    chance = random.Random(options.seed)
    for number in range(options.runs):
        flip = Flip(
            site=SITES[number % len(SITES)],
            rank=chance.randrange(options.ranks),
            step=chance.randrange(warm + 1, warm + options.every + 1),
            seed=chance.randrange(2**31),
        )
        kept, steps = states[flip.step - warm - 1]
        replicas.load(kept)
        replicas.history._steps.clear()
        replicas.history._steps.extend(steps)
        alarm = None
        for step in range(flip.step, warm + options.every + 1):
            alarm = alarm or replicas.step(step, flip)
        loss = replicas.loss()
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


def measure_cost(options: argparse.Namespace) -> None:
    """One rank's step with and without the guard, in turns, at one comparison in `every` steps."""
    torch.manual_seed(0)
    words = 32_000 if options.device == "cuda" else 512
    model = Model(options.cost_width, options.cost_layers, words).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=options.device == "cuda")
    guard = CorruptionGuard(model, optimizer, CorruptionConfig(every_steps=options.every))
    tokens = torch.randint(0, words, (options.cost_rows, 513), device=options.device)
    loss_of: Callable[[torch.Tensor], torch.Tensor] = lambda batch: autocast_loss(model, batch, options.device)  # noqa: E731

    def train(guarded: bool) -> float:
        start = time.perf_counter()
        for step in range(1, options.every + 1):
            optimizer.zero_grad()
            loss_of(tokens).backward()
            if guarded:
                guard.after_backward(step, loss_of, tokens)
                if step == options.every:  # what three or more ranks would do, which a single one leaves out
                    guard._compute(loss_of, tokens[: max(1, len(tokens) // 4)])
                    sketch(state_of(model, optimizer))
            optimizer.step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    train(True)
    turns = [(train(False), train(True)) for _ in range(options.cost_turns)]
    plain, guarded = (sorted(column)[len(turns) // 2] for column in zip(*turns, strict=True))
    count = sum(p.numel() for p in model.parameters())
    print(
        f"cost on {count / 1e6:.0f}M parameters: {1e3 * plain / options.every:.1f} ms a step, with the guard "
        f" {1e3 * guarded / options.every:.1f} ms: {100 * (guarded / plain - 1):+.2f} %"
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
