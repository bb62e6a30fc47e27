"""Are runs that ended well called failed? Really run small training jobs and diagnose what they print.

python proving/benchmarks/explain_finished.py OUTPUT [--count 500] [--torchrun 6]

Three in four logs come from the Hugging Face Trainer and Lightning, each run with settings of its own (logging,
progress bars, evaluation, checkpoints, callbacks, warnings); plain loops as people write them make the rest, and a few
jobs run under torchrun with several ranks. Public logs of healthy runs beside the repository are read where they are.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from prism.evidence.logs import diagnose, read_job


@contextlib.contextmanager
def printed_to(path: Path) -> Iterator[None]:
    """Everything that this process prints, from Python or below it, goes to `path`."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with path.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])


def run_trainer(rng: random.Random, scratch: Path) -> None:
    """The Hugging Face Trainer on a linear model."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            out = self.layer(x).squeeze(-1)
            loss = ((out - (labels if labels is not None else out)) ** 2).mean()
            return {"loss": loss, "logits": out}

    rows = [{"x": torch.randn(4), "labels": torch.randn(())} for _ in range(rng.choice([16, 64]))]
    evaluate = rng.random() < 0.5
    args = TrainingArguments(
        output_dir=str(scratch), max_steps=rng.choice([6, 12, 25]), logging_steps=rng.choice([1, 3, 5]),
        per_device_train_batch_size=4, disable_tqdm=rng.random() < 0.5, use_cpu=True, report_to=[],
        save_strategy=rng.choice(["no", "steps"]), save_steps=5, save_total_limit=1,
        eval_strategy="steps" if evaluate else "no", eval_steps=5, learning_rate=rng.choice([1e-3, 1.0]),
    )  # fmt: skip
    trainer = Trainer(model=Model(), args=args, train_dataset=rows, eval_dataset=rows if evaluate else None)
    trainer.train()


def run_lightning(rng: random.Random, scratch: Path) -> None:
    """A Lightning trainer with the callbacks that people use."""
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            loss = self.layer(batch[0]).square().mean()
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
    limit = {"max_epochs": rng.choice([1, 2, 3])} if rng.random() < 0.5 else {"max_steps": rng.choice([5, 20])}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, default_root_dir=str(scratch), logger=False,
                                enable_progress_bar=rng.random() < 0.7, log_every_n_steps=rng.choice([1, 10]),
                                enable_checkpointing=rng.random() < 0.5, **limit)  # fmt: skip
    trainer.fit(Module(), data)


STYLES = (
    "step {i}/{n} loss: {loss:.4f}",
    "iteration {i:8d}/{n:8d} | lm loss: {loss:.6E} | grad norm: 1.2",
    "Epoch [{i}/{n}] loss={loss:.4f}",
    "step {i} loss: {loss:.4f}",
    "{{'loss': {loss:.4f}, 'step': {i}}}",
)
NOISE = (
    "UserWarning: the given tensor is not writable",
    "ConnectionError: metrics service is down, will retry",
    "sample: 'NVRM: Xid 79, GPU has fallen off the bus on node-12'",
    "skipping batch 7: ValueError: empty text",
    "WARNING: failed to send metrics, retrying in 5 s",
    "loss scale: 65536, error rate: 0.12",
)


def run_loop(rng: random.Random, scratch: Path) -> None:
    """A loop as people write it: its own words, warnings, retried errors, printed samples."""
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = rng.choice([12, 40, 200])
    style = rng.choice(STYLES)
    for i in range(1, steps + 1):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(style.format(i=i, n=steps, loss=float(loss)))
        if rng.random() < 0.05 and i < steps - 4:
            print(rng.choice(NOISE))
    if rng.random() < 0.5:
        torch.save(model.state_dict(), scratch / "model.pt")
        print(f"saved checkpoint to {scratch / 'model.pt'}")
    if rng.random() < 0.6:
        print(
            rng.choice(
                ["Training finished.", "Training complete!", "done", "All done.", "training completed in 12.3 s"]
            )
        )


RANKS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for i in range(int(sys.argv[1])):
    x = torch.ones(8); dist.all_reduce(x)
    if dist.get_rank() == 0 or sys.argv[2] == "all":
        print(f"[rank{dist.get_rank()}]: step {i} loss: {1 / (i + 1):.4f}", flush=True)
dist.destroy_process_group()
"""


def run_ranks(rng: random.Random, log: Path, scratch: Path) -> None:
    """Several ranks under torchrun, all in one log."""
    script = scratch / "train.py"
    script.write_text(RANKS)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(rng.choice([2, 3])),
    ]
    with log.open("wb") as out:
        subprocess.run([*command, str(script), str(rng.choice([10, 30])), rng.choice(["first", "all"])], check=True,
                       stdout=out, stderr=subprocess.STDOUT, timeout=300)  # fmt: skip


def write_logs(output: Path, count: int, num_torchrun: int) -> None:
    """Run every job and keep what it printed."""
    makers: list[Callable[[random.Random, Path], None]] = [
        run_trainer,
        run_lightning,
        run_loop,
        run_trainer,
        run_lightning,
    ]
    output.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("always")
    for number in range(count):
        rng = random.Random(number)
        make = makers[number % len(makers)]
        kind = "ranks" if number < num_torchrun else make.__name__.removeprefix("run_")
        log = output / f"{number:04d}_{kind}.log"
        if log.exists():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            if kind == "ranks":
                run_ranks(rng, log, Path(scratch))
                continue
            with printed_to(log):
                make(rng, Path(scratch))


def main() -> None:
    """Run, diagnose and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--torchrun", type=int, default=6)
    args = parser.parse_args()
    write_logs(args.output, args.count, args.torchrun)
    data = Path(os.environ.get("PRISM_DATA", Path(__file__).parents[3] / "shared" / "data"))
    public = sorted(data.glob("nccl_logs/*.log.gz"))
    answers: Counter[str] = Counter()
    for log in [*sorted(args.output.glob("*.log")), *public]:
        verdict = diagnose(read_job(str(log))).verdict
        kind = log.stem.split("_", 1)[-1] if log not in public else "public NCCL log"
        answers[f"{kind}: {verdict.reason}"] += 1
        if verdict.reason not in ("none", "Unknown"):
            print(f"  {log.name}: {verdict.reason} {verdict.evidence[:1]}")
    failed = sum(n for name, n in answers.items() if not name.endswith((": none", ": Unknown")))
    unknown = sum(n for name, n in answers.items() if name.endswith(": Unknown"))
    print(f"called failed: {failed} of {answers.total()}; unknown: {unknown}")
    for name, number in sorted(answers.items()):
        print(f"  {name}: {number}")


if __name__ == "__main__":
    main()
