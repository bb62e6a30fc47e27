"""Train torchtitan's Llama 3 debug model (pip install torchtitan) on text made here, so that nothing is downloaded.

On a machine without a GPU torchtitan still asks for CUDA; this script points it at the CPU first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch


def parse() -> argparse.Namespace:
    """Degrees of the layout; data parallelism takes what they leave."""
    parser = argparse.ArgumentParser()
    for name, default in (("tp", 1), ("pp", 1), ("replicas", 1), ("steps", 12), ("length", 128), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def use_cpu() -> None:
    """torchtitan falls back to CUDA where it finds no accelerator."""
    import torchtitan.tools.utils as utils

    utils.device_type, utils.device_module = "cpu", _CpuModule()
    utils.get_local_device = lambda: torch.device("cpu")
    from torchtitan.models.common.attention import FlexAttention

    FlexAttention._compiled_flex_attn = staticmethod(_attend)


def _attend(q, k, v, *, scale=None, enable_gqa=False, **unused):
    """FlexAttention has no backward pass on CPUs; documents are not told apart here."""
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    return out, type("Aux", (), {"lse": out.new_zeros(out.shape[:-1])})()


class _CpuModule:
    """What torchtitan asks of an accelerator's module, answered for the CPU."""

    def __getattr__(self, name: str) -> object:
        return getattr(torch.cpu, name, lambda *args, **kwargs: 0)

    def get_device_name(self, *args: object) -> str:
        return "cpu"

    def current_device(self) -> int:
        return 0

    def memory_stats(self, *args: object) -> dict[str, int]:
        names = ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms")
        return dict.fromkeys(names, 0)

    def get_device_properties(self, *args: object) -> object:
        return type("Properties", (), {"total_memory": 1, "name": "cpu"})()


def write_assets(folder: Path) -> None:
    """A tokenizer of a few words, and text for it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = [f"w{i}" for i in range(1000)]
    tokenizer = Tokenizer(
        WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2, **{w: i + 3 for i, w in enumerate(words)}}, "<unk>")
    )
    tokenizer.pre_tokenizer = Whitespace()
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "text").mkdir()
    lines = (json.dumps({"text": " ".join(words[(7 * i + j) % 1000] for j in range(400))}) for i in range(200))
    (folder / "text" / "data.json").write_text("\n".join(lines))


def main() -> None:
    """torchtitan's own trainer, from start to end."""
    args = parse()
    if not torch.cuda.is_available():
        use_cpu()
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    from torchtitan.tools.logging import init_logger

    init_logger()
    if not hasattr(torch.distributed, "set_timeout"):  # torchtitan 0.3 was written for a later torch than 2.13
        torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout
    with tempfile.TemporaryDirectory() as scratch:
        write_assets(Path(scratch))
        config = llama3_debugmodel()
        config.parallelism.spmd_backend = "partial_dtensor"  # the other two need a later torch than 2.13
        config.hf_assets_path = f"{scratch}/tokenizer"
        config.dump_folder = f"{scratch}/outputs"
        config.dataloader.dataset_path = f"{scratch}/text"
        config.training.steps, config.training.seq_len = args.steps, args.length
        config.training.local_batch_size = args.batch
        config.parallelism.tensor_parallel_degree = args.tp
        config.parallelism.pipeline_parallel_degree = args.pp
        config.parallelism.data_parallel_replicate_degree = args.replicas
        if not torch.cuda.is_available():
            config.training.mixed_precision_param = "float32"  # bfloat16 is slow on most CPUs
        config.checkpoint.enable = False
        config.validator.enable = False
        trainer = config.build()
        try:
            trainer.train()
        finally:
            trainer.close()


if __name__ == "__main__":
    main()
