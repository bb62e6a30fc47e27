"""Steps and losses from a trainer's own log, in the formats of the common trainers.

A number counts as progress only after two lines of the same format with a rising step, three where they are plain words
without a loss: headlines such as "training until step 100000" must not be taken for one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_MAX_LINE = 2_000
_NEEDED = 2  # lines with a rising step
_NEEDED_WORDS = 3  # of plain words without a loss: sentences with the word "step" in them come in pairs
_FLOAT = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
# The loss of training: not that of an evaluation, not a loss scale.
_LOSS = re.compile(
    rb"(?<!val )(?<!val_)(?<!valid )(?<!eval )(?<!eval_)(?<!test )\bloss\b['\"]?\s*[:=]?\s*['\"]?("
    + _FLOAT
    + rb")(?![\w.])",
    re.IGNORECASE,
)
_TRAIN_LOSS = re.compile(rb"\btrain_loss(?:_step)?\b['\"]?\s*[:=]\s*['\"]?(" + _FLOAT + rb")(?![\w.])", re.IGNORECASE)
# tqdm: description, percent, bar, count/total, [elapsed<remaining, rate, ...]. Counts with units (1.2M) are no steps.
_BAR = re.compile(rb"(?:^|\r)([^|\r]{0,80}?)\s*\d{1,3}%\|[^|]{0,400}\|\s*(\d+)/(\d+)\s*\[[^\]]{0,300}\]?")
# Lightning's bar where Rich is installed: "Epoch 4/9 ━━━━ 10/20 0:00:01 • ... train_loss: 0.678".
_RICH_BAR = re.compile(rb"^(Epoch \d+)/-?\d+\s+[^\d]{1,400}?\s(\d+)/(\d+)\s+\d+:")
_EPOCH = re.compile(rb"\bepoch\b\D{0,3}(\d+)", re.IGNORECASE)
_NO_TRAINING = re.compile(
    rb"valid|sanity|eval|test|predict|map|load|download|generat|saving|filter|tokeniz", re.IGNORECASE
)
# Megatron-LM: "iteration  10/ 100 | ... | lm loss: 1.0E+01 | ...".
_MEGATRON = re.compile(rb"\biteration\s+(\d+)/\s*\d+\s*\|")
# torchtitan: "step:  10  loss:  7.1"; DeepSpeed: "steps: 10 loss: 0.1", "step=10, skipped=0"; plain: "step 10/500".
_STEP = re.compile(
    rb"^(?:.{0,120}?[\]\-:|>]\s*)?\W{0,3}(?:global[_ ]?)?(?:step|steps|iteration|iter|it)\b"
    rb"\s*[:=#]?\s*\[?\s*(\d{1,12})\b",
    re.IGNORECASE,
)
_STEP_AND_LOSS = re.compile(
    rb"\b(?:global[_ ]?)?(?:step|iteration|iter)s?\b\s*[:=#]?\s*\[?\s*(\d{1,12})\b", re.IGNORECASE
)
_OF_TOTAL = re.compile(rb"\s*/\s*(\d{1,12})")
_COLORS = re.compile(rb"\x1b\[[\d;]{0,12}[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """A step read from a log line."""

    step: int
    loss: float | None = None


@dataclass(slots=True, kw_only=True)
class LogFormats:
    """The formats seen in one log; feed it lines, in order."""

    _waiting: dict[str, list[LoggedStep]] = field(default_factory=dict)  # the first lines of each format
    _chosen: str | None = None
    _last: int = -1
    _bar: tuple[bytes, int] | None = None  # description and total of the training's bar

    def read(self, line: bytes) -> list[LoggedStep]:
        """The steps that are certain after this line; mostly none or one."""
        text = _COLORS.sub(b"", line[:_MAX_LINE])
        found = self._find(text)
        if found is None:
            loss = _read_loss(text) if self._chosen == "bar" and text.lstrip().startswith(b"{") else None
            # Hugging Face prints the loss as a dictionary of its own, between two states of its bar.
            return [LoggedStep(step=self._last, loss=loss)] if loss is not None and self._last >= 0 else []
        name, logged = found
        if self._chosen is None:
            before = [one for one in self._waiting.get(name, []) if one.step < logged.step]
            self._waiting[name] = seen = [*before, logged]
            words = name == "plain" and any(one.loss is None for one in seen)
            if len(seen) < (_NEEDED_WORDS if words else _NEEDED):
                return []
            self._chosen, self._last = name, logged.step
            return self._waiting.pop(name)
        if name != self._chosen or logged.step <= self._last:
            return []
        self._last = logged.step
        return [logged]

    def _find(self, text: bytes) -> tuple[str, LoggedStep] | None:
        # Most lines of a long log are no steps, and looking for a word costs a tenth of these patterns.
        if (bar := (_BAR.search(text) if b"%|" in text else None) or _RICH_BAR.search(text)) is not None:
            step = self._read_bar(bar[1], int(bar[2]), int(bar[3]))
            return None if step is None else ("bar", LoggedStep(step=step, loss=_read_loss(text)))
        words = text.lower()
        if b"step" not in words and b"it" not in words:
            return None
        if (match := _MEGATRON.search(text)) is not None:
            return "megatron", LoggedStep(step=int(match[1]), loss=_read_loss(text))
        loss = _read_loss(text)
        match = _STEP.match(text) or (_STEP_AND_LOSS.search(text) if loss is not None else None)
        if match is None or b"val loss" in words:
            return None
        step, of_epoch = int(match[1]), _OF_TOTAL.match(text, match.end(1))
        if of_epoch is not None and (epoch := _EPOCH.search(text)) is not None:
            step += int(epoch[1]) * int(of_epoch[1])  # "Epoch [2/8], Step [15/20]" counts from 1 in every epoch
        return "plain", LoggedStep(step=step, loss=loss)

    def _read_bar(self, description: bytes, count: int, total: int) -> int | None:
        """The step of a progress bar, counted over epochs; None if the bar is not that of training."""
        if _NO_TRAINING.search(description) or total <= 1:
            return None
        epoch = _EPOCH.search(description)
        kind = (_EPOCH.sub(b"epoch", description).strip(), total)
        if self._bar is None or (self._bar != kind and self._chosen is None):
            self._bar = kind
        if kind != self._bar:
            return None
        return int(epoch[1]) * total + count if epoch is not None else count


def _read_loss(text: bytes) -> float | None:
    match = (_LOSS.search(text) or _TRAIN_LOSS.search(text)) if b"loss" in text.lower() else None
    if match is None:
        return None
    value = float(match[1])
    return value if math.isfinite(value) or match[1].lower().lstrip(b"+-") in (b"nan", b"inf") else None
