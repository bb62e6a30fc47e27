"""Train a small causal language model with the Hugging Face Trainer (pip install transformers accelerate).

The model is made from its configuration and the text is random tokens, so nothing is downloaded.
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def parse() -> argparse.Namespace:
    """Sizes of the model, and what the Trainer is told."""
    parser = argparse.ArgumentParser()
    for name, default in (
        ("width", 128), ("layers", 4), ("heads", 4), ("vocab", 1024), ("length", 64), ("batch", 4), ("steps", 20),
        ("accumulation", 1), ("logging-steps", 5),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--fsdp", action="store_true", help="shard the model (FSDP2) in place of DDP; GPUs only")
    return parser.parse_args()


class RandomTokens(torch.utils.data.Dataset):
    """Sequences whose labels are the tokens themselves."""

    def __init__(self, length: int, vocab: int, size: int = 1 << 16) -> None:
        self._length, self._vocab, self._size = length, vocab, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(self._vocab, (self._length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """The Trainer's own loop, from start to end."""
    args = parse()
    shape = LlamaConfig(
        hidden_size=args.width, intermediate_size=4 * args.width, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.heads, vocab_size=args.vocab,
        max_position_embeddings=args.length,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    on_gpu = torch.cuda.is_available()
    if args.fsdp and not on_gpu:
        raise SystemExit("accelerate leaves FSDP out on CPUs without a word and runs DDP; use --fsdp on a GPU")
    layer = {"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
    shard = {"fsdp": "full_shard auto_wrap", "fsdp_config": layer} if args.fsdp else {}
    settings = TrainingArguments(
        output_dir=args.output_dir, max_steps=args.steps, per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulation, logging_steps=args.logging_steps, save_strategy="no",
        report_to="none", bf16=on_gpu, use_cpu=not on_gpu, dataloader_drop_last=True, **shard,
    )  # fmt: skip
    Trainer(model=model, args=settings, train_dataset=RandomTokens(args.length, args.vocab)).train()


if __name__ == "__main__":
    main()
