"""Train a small GPT with any layout; run it with torchrun, or at any scale with `prism emulate`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from layouts import build, sized
from model import loss_of


def parse() -> argparse.Namespace:
    """Degrees of the layout and sizes of the model; data parallelism takes what the others leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=("ddp", "fsdp", "hsdp"), default="ddp")
    for degree in ("pp", "tp", "cp"):
        parser.add_argument(f"--{degree}", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=2, help="of hsdp")
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--router", choices=("learned", "even"), default="learned", help="of tokens to experts")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "interleaved"), default="1f1b")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--compile", action="store_true")
    for name, default in (("vocab", 1024), ("width", 256), ("heads", 4), ("layers", 4), ("length", 128), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--clip", type=float, default=0.0, help="largest gradient norm; 0 leaves gradients alone")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", default=None, help="nccl on GPUs, gloo on CPUs, unless given")
    parser.add_argument("--times", default=None, help="file for step times and peak memory, as JSON, one per rank")
    return parser.parse_args()


def main() -> None:
    """The training loop."""
    args = parse()
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group(args.backend or ("nccl" if device.type == "cuda" else "gloo"))
    torch.manual_seed(0)
    config = sized(args)
    parts = build(args, config, device)
    # Tensor parallelism alone leaves some parameters whole, and torch's fused loops take no mixture.
    mixed = args.tp > 1 and args.data == "ddp"
    parameters = [p for m in parts.modules for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False if mixed else None)
    generator = torch.Generator().manual_seed(1)
    shape = (args.batch, config.length)
    walls = []
    for step in range(args.steps):
        started = time.perf_counter()
        tokens = torch.randint(config.vocab, shape, generator=generator).to(device)
        loss = _step(parts, tokens)
        if args.clip:
            torch.nn.utils.clip_grad_norm_([p for m in parts.modules for p in m.parameters()], args.clip)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        walls.append(time.perf_counter() - started)
        if dist.get_rank() == 0 and loss is not None:
            print(f"step {step} loss {loss:.4f}", flush=True)
    if args.times:
        _write_times(args.times, walls, device)
    dist.destroy_process_group()


def _step(parts, tokens: torch.Tensor) -> float | None:
    """Forward and backward; the loss is known on the last stage only."""
    if parts.schedule is None:
        loss = loss_of(parts.modules[0](tokens), tokens)
        loss.backward()
        return loss.item()
    losses: list[torch.Tensor] = []
    inputs = (tokens,) if 0 in parts.stage_indices else ()
    last = parts.num_stages - 1 in parts.stage_indices
    parts.schedule.step(*inputs, target=tokens if last else None, losses=losses if last else None)
    return statistics.mean(x.item() for x in losses) if losses else None


def _write_times(path: str, walls: list[float], device: torch.device) -> None:
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    reserved = torch.cuda.max_memory_reserved() if device.type == "cuda" else 0
    requested = torch.cuda.memory_stats()["requested_bytes.all.peak"] if device.type == "cuda" else 0
    figures = {"walls_s": walls, "peak_allocated": peak, "peak_reserved": reserved, "peak_requested": requested}
    Path(f"{path}.{dist.get_rank()}").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
