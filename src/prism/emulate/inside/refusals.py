"""Refuse communication that does not pass through process groups: Prism would not see it and predict too little."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from prism.emulate.inside.after_import import change_after_import
from prism.emulate.inside.session import UnsupportedError

_OUTSIDE_C10D = {
    "deep_ep": (("Buffer", "ElasticBuffer"), "DeepEP moves tokens by NVSHMEM"),
    "nvshmem.core": (("init",), "NVSHMEM moves data without a process group"),
    "transformer_engine_torch": (("CommOverlap", "CommOverlapP2P"), "Transformer Engine's user buffers bypass NCCL"),
    "torch.distributed.rpc": (("init_rpc",), "remote procedure calls do not pass through process groups"),
    "torch.distributed._symmetric_memory": (("rendezvous", "empty"), "symmetric memory lets GPUs write to each other"),
}


def refuse_what_cannot_be_seen() -> None:
    """Make the first use of such a library an error that says what to switch off; having it installed is allowed."""
    for name in _OUTSIDE_C10D:
        change_after_import(name, _close)
    import torch.multiprocessing as workers

    workers.spawn = _refuse_spawn  # type: ignore[attr-defined]


def _refuse_spawn(*args: Any, **kwargs: Any) -> None:
    raise UnsupportedError(
        "the script starts its own ranks (torch.multiprocessing.spawn); give `prism emulate` a script that torchrun "
        "could launch"
    )


def _close(module: ModuleType) -> None:
    names, why = _OUTSIDE_C10D[module.__name__]
    for name in names:
        if hasattr(module, name):
            setattr(module, name, _refusal(f"{module.__name__}.{name}", why))


def _refusal(what: str, why: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(f"{what} cannot be emulated: {why}; switch it off for this run")

    return refuse
