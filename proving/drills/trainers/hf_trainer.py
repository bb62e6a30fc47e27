"""A Hugging Face training script as its users write it: nothing in it knows of Prism."""

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random sequences, the same in every run."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(float(os.environ.get("STEP_S", "0")) / 8)  # of a batch of eight
        words = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def main(output: str, steps: int) -> None:
    own_saves = "SAVE_STEPS" in os.environ  # the Trainer's own checkpoints, and its own resume
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=output,
        max_steps=steps,
        per_device_train_batch_size=8,
        logging_steps=1,
        save_strategy="steps" if own_saves else "no",
        save_steps=int(os.environ.get("SAVE_STEPS", "500")),
        dataloader_num_workers=int(os.environ.get("WORKERS", "2")),
        report_to=[],
        use_cpu=True,
    )
    sys.stdout.write(os.environ.get("GREETING", ""))
    sys.stdout.flush()
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
    last = get_last_checkpoint(output) if own_saves and Path(output).is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    if arguments.process_index == 0:
        sys.stdout.write(f"weights {sum(float(p.detach().double().sum()) for p in model.parameters())!r}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
