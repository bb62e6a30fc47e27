"""`prism estimate`: step time, memory and MFU of a job that has no program yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import note, show, show_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prism.estimate import Estimate, EstimateConfig

EPILOG = examples(
    "prism estimate --model llama-70b --gpus 512 --cluster dgx-h100 --layout tp=8,pp=4",
    "prism estimate --model ./config.json --gpus 512 --cluster dgx-h100 --sweep",
    "prism estimate --model megatron_args.sh --gpus 64 --cluster dgx-h200 --precision fp8 --global-batch 512 --sweep",
)

Model = Annotated[
    str, typer.Option(help="A name such as llama-70b, a Hugging Face config.json, or a file of Megatron's arguments.")
]
Gpus = Annotated[int, typer.Option(help="GPUs of the job.", min=1)]
ClusterName = Annotated[str, typer.Option("--cluster", help="Cluster file, or a preset such as dgx-h100.")]
LayoutText = Annotated[
    str | None,
    typer.Option(
        "--layout", help="As tp=8,pp=4; also dp, cp, ep, vp (chunks a rank), mbs (micro-batch), sharding, recompute."
    ),
]
Sweep = Annotated[
    bool, typer.Option("--sweep", help="Try all layouts and show the best; the default without --layout.")
]
Precision = Annotated[str, typer.Option(help="bf16, fp8 or fp4, as far as the GPU's layer times are known.")]
Sequence_ = Annotated[
    int | None, typer.Option("--sequence", help="Tokens of a sequence; by default the model's, at most 8192.")
]
GlobalBatch = Annotated[int | None, typer.Option(help="Sequences of a step; by default about 4 million tokens.", min=1)]
Layers = Annotated[Path | None, typer.Option(help="More kinds of GPUs, in the form of Prism's own gpus.yaml.")]
Rows = Annotated[int, typer.Option(help="Layouts to show.", min=1)]


def run_estimate(
    model: Model,
    gpus: Gpus,
    cluster: ClusterName,
    layout: LayoutText = None,
    sweep: Sweep = False,
    precision: Precision = "bf16",
    sequence: Sequence_ = None,
    global_batch: GlobalBatch = None,
    layers: Layers = None,
    rows: Rows = 10,
    json: JsonFlag = False,
) -> None:
    """What would a job take that has no program yet? From shapes and published layer times: no script, no GPU."""
    from prism.errors import BadConfigError
    from prism.estimate import EstimateConfig, describe_estimates, estimate, find_gpu, read_layout, read_model
    from prism.estimate import sweep as sweep_layouts
    from prism.simulate import load_cluster

    if layout and sweep:
        raise BadConfigError("--layout asks for one layout and --sweep for all; give one of them")
    machine = load_cluster(cluster)
    config = EstimateConfig(
        model=read_model(model, sequence), gpus=gpus, cluster=machine, gpu=find_gpu(machine.gpu, layers),
        precision=precision, global_batch=global_batch, note=note,
    )  # fmt: skip
    config.gpu.speed(precision)
    found = [estimate(config, read_layout(layout, gpus))] if layout else sweep_layouts(config)
    if json:
        show_json(describe_estimates(config, found))
        return
    _show(config, found[:rows])


def _show(config: EstimateConfig, found: Sequence[Estimate]) -> None:
    billions = config.model.params / 1e9
    title = (
        f"{billions:,.1f} billion parameters on {config.gpus:,} {config.gpu.name} ({config.cluster.name}, "
        f"{config.precision}), {config.sequences:,} sequences of {config.model.seq:,} tokens a step"
    )
    lines = (
        (
            ", ".join(f"{k}={str(v).lower()}" for k, v in one.layout.describe().items() if v not in (1, False))
            or "one GPU",
            f"{one.step_ms:,.0f} ms",
            f"{one.band_pct:g} %",
            f"{one.memory.peak / 1e9:,.1f} GB",
            f"{one.mfu:.1%}",
            "" if one.fits else "too large",
        )
        for one in found
    )
    show(table(title, ("layout", ">step", ">band", ">memory", ">MFU", ""), lines))
    origin = config.gpu.speed(config.precision).origin
    note(f"layer times: {origin}; communication is modelled, memory counted from shapes")
