"""A Hugging Face checkpoint on a device, through torch and transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers

from prism.evaluate.run.models.lora import AdapterSwitch
from prism.evaluate.run.models.model import Continuation

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class PretrainedModel:
    """A causal model; without a tokenizer beside it, tokens are bytes."""

    def __init__(self, folder: Path, device: str) -> None:
        self.device = torch.device(device)
        opened = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype="auto", local_files_only=True)
        self.model = cast(Any, opened).to(self.device).eval()
        self.tokenizer: Any = None
        if any((folder / name).exists() for name in _TOKENIZER_FILES):
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        self._max_tokens = int(getattr(self.model.config, "max_position_embeddings", 2048))
        self._switch = AdapterSwitch(self.model)

    def use_adapter(self, adapter: Path | None) -> None:
        """Put an adapter on, or take it off."""
        self.model = self._switch.use_adapter(adapter)

    @torch.inference_mode()
    def likelihoods(self, asked: Sequence[Continuation], batch: int) -> list[float]:
        """How likely each continuation is; longest first, so that a batch too large fails at once."""
        pairs = [self._encode(one) for one in asked]
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]))
        out = [0.0] * len(pairs)
        for chunk in (order[i : i + batch] for i in range(0, len(order), batch)):
            for place, found in zip(chunk, self._score([pairs[i] for i in chunk]), strict=True):
                out[place] = found
        return out

    @torch.inference_mode()
    def generate(self, prompts: Sequence[str], max_tokens: int, batch: int) -> list[str]:
        """Greedy continuations; prompts of a batch are padded on the left, the longest batch goes first."""
        tokens = [self._tokens(prompt)[-(self._max_tokens - max_tokens) :] or [0] for prompt in prompts]
        order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
        out = [""] * len(tokens)
        for chunk in (order[i : i + batch] for i in range(0, len(order), batch)):
            longest = len(tokens[chunk[0]])
            ids = torch.zeros((len(chunk), longest), dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, place in enumerate(chunk):
                ids[row, longest - len(tokens[place]) :] = torch.tensor(tokens[place])
                mask[row, longest - len(tokens[place]) :] = 1
            made = self.model.generate(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                do_sample=False,
                max_new_tokens=max_tokens,
                pad_token_id=0,
            )
            for place, row in zip(chunk, made[:, longest:].tolist(), strict=True):
                out[place] = self._text(row)
        return out

    def _encode(self, one: Continuation) -> tuple[list[int], int]:
        """Tokens of both texts, and how many belong to the continuation."""
        context, after = self._tokens(one.context) or [0], self._tokens(one.continuation)
        return [*context, *after][-self._max_tokens :], min(len(after), self._max_tokens - 1)

    def _score(self, pairs: Sequence[tuple[list[int], int]]) -> list[float]:
        longest = max(len(tokens) for tokens, _ in pairs)
        ids = torch.zeros((len(pairs), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, (tokens, _) in enumerate(pairs):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        logits = self.model(ids.to(self.device), attention_mask=mask.to(self.device)).logits
        sums = []
        for row, (tokens, count) in enumerate(pairs):
            after = ids[row, len(tokens) - count : len(tokens)].to(self.device)
            near = logits[row, len(tokens) - count - 1 : len(tokens) - 1].float()
            sums.append(near.log_softmax(-1).gather(1, after[:, None]).sum())
        # One transfer for the whole batch: each would wait for the device.
        return [float(found) for found in torch.stack(sums).tolist()]

    def _tokens(self, text: str) -> list[int]:
        if self.tokenizer is None:
            return [byte % self.model.config.vocab_size for byte in text.encode()]
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _text(self, tokens: list[int]) -> str:
        if self.tokenizer is None:
            return bytes(token % 256 for token in tokens).decode("latin-1")
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))
