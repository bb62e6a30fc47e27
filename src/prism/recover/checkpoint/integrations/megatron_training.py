"""Megatron-LM and megatron-core have their own options and calls for checkpoints; Prism only names them."""

from __future__ import annotations

import functools
import sys
from typing import Any

from prism.recover.checkpoint.integrations.automatic import automatic_folder

_LM = (
    "prism: no automatic checkpoints for Megatron-LM; give it --save DIR --load DIR --save-interval N --async-save, "
    "and each attempt continues from there\n"
)
_CORE = (
    "prism: no automatic checkpoints for megatron-core, whose loop belongs to the script; save and load with "
    "megatron.core.dist_checkpointing, and each attempt continues from there\n"
)


def attach(module: Any) -> None:
    """Say in one line how such a job is resumed; it runs as it would without."""
    if automatic_folder() is None:
        return
    if module.__name__ == "megatron.training.training":
        sys.stderr.write(_LM)
        return
    plain, unsaid = module.get_forward_backward_func, [_CORE]

    @functools.wraps(plain)
    def get_forward_backward_func(*args: Any, **kwargs: Any) -> Any:
        if unsaid and "megatron.training.training" not in sys.modules:  # which imports this too, and has its own line
            sys.stderr.write(unsaid.pop())
        return plain(*args, **kwargs)

    module.get_forward_backward_func = get_forward_backward_func
