"""A tiny GPT-2 under the Hugging Face Trainer on CPU ranks; a log line every third step."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(Dataset):
    """Equal tokens for equal indices."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
settings = TrainingArguments(
    output_dir="out", max_steps=16, per_device_train_batch_size=2, logging_steps=3, save_strategy="no", report_to=[],
    use_cpu=True, ddp_backend="gloo", disable_tqdm=True,
)  # fmt: skip
Trainer(model=model, args=settings, train_dataset=RandomTokens()).train()
