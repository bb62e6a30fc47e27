"""Put a GPT on a device mesh: any mix of pipeline, data (DDP, FSDP, HSDP), tensor, context and expert parallelism."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.distributed as dist
from model import GPT, Attention, ModelConfig
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


@dataclass
class Parts:
    """What one rank trains: its model parts, and the pipeline schedule where there is one."""

    modules: list[torch.nn.Module]
    schedule: object | None
    stage_indices: list[int]
    num_stages: int
    mesh: DeviceMesh


def build(args: argparse.Namespace, config: ModelConfig, device: torch.device) -> Parts:
    """Mesh, model parts and schedule for the layout that the arguments ask for."""
    world = dist.get_world_size()
    replicas = args.replicas if args.data == "hsdp" else 1
    data = world // (args.pp * args.tp * args.cp)
    if args.pp * data * args.tp * args.cp != world:
        raise ValueError(f"pp {args.pp} x cp {args.cp} x tp {args.tp} does not divide the world size {world}")
    if args.data == "hsdp":
        sizes, names = (args.pp, replicas, data // replicas, args.cp, args.tp), ("pp", "replica", "dp", "cp", "tp")
    else:
        sizes, names = (args.pp, data, args.cp, args.tp), ("pp", "dp", "cp", "tp")
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    experts = mesh["dp"].get_group() if config.experts else None
    ranges = _stage_ranges(args, config)
    stage = mesh["pp"].get_local_rank()
    mine = [stage + i * args.pp for i in range(len(ranges) // args.pp)]
    modules = []
    for index in mine:
        with device:
            module = GPT(config, *ranges[index], experts=experts)
        modules.append(_parallelize(module, args, mesh))
    schedule = _schedule(modules, mine, len(ranges), args, mesh, device) if args.pp > 1 else None
    return Parts(modules, schedule, mine, len(ranges), mesh)


def _stage_ranges(args: argparse.Namespace, config: ModelConfig) -> list[tuple[int, int]]:
    stages = args.pp * (2 if args.schedule == "interleaved" and args.pp > 1 else 1)
    if config.layers < stages:
        raise ValueError(f"{config.layers} layers cannot fill {stages} stages")
    edges = [config.layers * i // stages for i in range(stages + 1)]
    return list(pairwise(edges))


def _parallelize(module: GPT, args: argparse.Namespace, mesh: DeviceMesh) -> torch.nn.Module:
    if args.cp > 1:
        for part in module.modules():
            if isinstance(part, Attention):
                part.ring = mesh["cp"].get_group()
    if args.tp > 1:
        _shard_tensors(module, mesh["tp"], args.sequence_parallel)
    if args.compile:
        for block in module.blocks:
            block.compile()
    if args.data in ("fsdp", "hsdp"):
        over = mesh["replica", "dp"] if args.data == "hsdp" else mesh["dp"]
        for block in module.blocks:
            fully_shard(block, mesh=over)
        fully_shard(module, mesh=over)
    elif mesh["dp"].size() > 1:
        if args.tp > 1:
            raise ValueError("DDP does not take tensor-parallel parameters; use --data fsdp with --tp")
        if args.pp > 1 and args.schedule != "1f1b":
            # Its reducer counts the gradients of every forward pass that waits for its backward pass.
            raise ValueError(f"DDP fails under the {args.schedule} schedule; use --data fsdp")
        # Experts live on one rank each, so their gradients are nobody else's business.
        own = [name for name, _ in module.named_parameters() if ".experts." in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, own)
        return DistributedDataParallel(module, process_group=mesh["dp"].get_group())
    return module


def _shard_tensors(module: GPT, mesh: DeviceMesh, sequence: bool) -> None:
    """Megatron's cut: columns of the first matrix of a pair, rows of the second."""
    plan: dict[str, object] = {}
    for i in range(len(module.blocks)):
        attention, forward = f"blocks.{i}.attention", f"blocks.{i}.feed_forward"
        if sequence:
            plan[f"blocks.{i}.norm1"] = plan[f"blocks.{i}.norm2"] = SequenceParallel()
            for name in (attention, forward):
                plan[name] = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
        layouts = {"output_layouts": Shard(1)} if sequence else {}
        for name in ("q", "k", "v"):
            plan[f"{attention}.{name}"] = ColwiseParallel()
        plan[f"{attention}.out"] = RowwiseParallel(**layouts)
        plan[f"{forward}.up"] = ColwiseParallel()
        plan[f"{forward}.down"] = RowwiseParallel(**layouts)
    if sequence:
        if module.embedding is not None:
            plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        if module.norm is not None:
            plan["norm"] = SequenceParallel()
            plan["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(module, mesh, plan)


def _schedule(modules, indices, num_stages, args, mesh, device):
    group = mesh["pp"].get_group()
    stages = [PipelineStage(m, i, num_stages, device, group=group) for m, i in zip(modules, indices, strict=True)]
    from model import loss_of

    kind = SCHEDULES[args.schedule]
    return kind(stages if args.schedule == "interleaved" else stages[0], args.microbatches, loss_fn=loss_of)


def sized(args: argparse.Namespace) -> ModelConfig:
    """The model that the arguments ask for."""
    base = ModelConfig(
        vocab=args.vocab,
        width=args.width,
        heads=args.heads,
        layers=args.layers,
        length=args.length,
        experts=args.experts,
        router=args.router,
    )
    return replace(base, length=args.length // args.cp)
