"""Supervised fine-tuning with TRL's SFTTrainer: a tiny model made from its config, text that is tokenized already."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i + 3 for i in range(60)}}
plain = Tokenizer(WordLevel(words, "<unk>"))
plain.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="</s>", pad_token="</s>")
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **shape))
text = Dataset.from_dict({"text": [" ".join(f"w{(7 * i + j) % 60}" for j in range(12)) for i in range(400)]})
settings = SFTConfig(
    output_dir="out", max_steps=14, per_device_train_batch_size=2, logging_steps=100, save_strategy="no", report_to=[],
    use_cpu=not torch.cuda.is_available(), disable_tqdm=True, max_length=16, bf16=False, gradient_checkpointing=False,
)  # fmt: skip
SFTTrainer(model=model, args=settings, train_dataset=text, processing_class=tokenizer).train()
