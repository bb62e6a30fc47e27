"""Hugging Face's Trainer with its defaults: DDP, a log line now and then."""

import os
import tempfile

from parts import Truth, Words, build_model
from transformers import Trainer, TrainerCallback, TrainingArguments


class Steps(TrainerCallback):
    """Notes when steps begin and end."""

    def __init__(self) -> None:
        self.truth = Truth()

    def on_step_begin(self, *_: object, **__: object) -> None:
        self.truth.begin()

    def on_step_end(self, *_: object, **__: object) -> None:
        self.truth.end()


arguments = TrainingArguments(
    tempfile.mkdtemp(), max_steps=int(os.environ["STEPS"]), per_device_train_batch_size=2, use_cpu=True,
    ddp_backend="gloo", logging_steps=10, save_strategy="no", report_to="none", disable_tqdm=True,
    gradient_accumulation_steps=int(os.environ.get("ACCUMULATE", "1")),
)  # fmt: skip
Trainer(build_model(), arguments, train_dataset=Words(), callbacks=[Steps()]).train()
