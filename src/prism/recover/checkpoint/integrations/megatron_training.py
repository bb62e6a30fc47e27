"""Megatron-LM: its checkpoints are options of its own scripts, so Prism only says which."""

from __future__ import annotations

import sys
from typing import Any

from prism.recover.checkpoint.integrations.automatic import automatic_folder


def attach(module: Any) -> None:
    """Say in one line how a Megatron-LM job is resumed; the job runs as it would without."""
    if automatic_folder() is not None:
        sys.stderr.write(
            "prism: no automatic checkpoints for Megatron-LM; give it --save DIR --load DIR --save-interval N "
            "--async-save, and each attempt continues from there\n"
        )
