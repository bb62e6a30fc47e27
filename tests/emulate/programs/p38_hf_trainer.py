"""Hugging Face Trainer: tiny GPT-2 from scratch, logging every 2 steps, evaluation every 4, accumulation 2."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 100, (size, 16), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


def main():
    config = GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    args = TrainingArguments(
        output_dir="trainer-output",
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=12,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="no",
        lr_scheduler_type="linear",
        warmup_steps=2,
        max_grad_norm=1.0,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config), args=args, train_dataset=Sentences(16384, 0), eval_dataset=Sentences(512, 1)
    )
    trainer.train()
    if trainer.is_world_process_zero():
        print(trainer.state.log_history[-1])


if __name__ == "__main__":
    main()
