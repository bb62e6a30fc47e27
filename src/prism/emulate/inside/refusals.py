"""Refuse communication that does not pass through process groups: Prism would not see it and would tell lies."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from prism.emulate.inside.session import UnsupportedError

_OUTSIDE_C10D = {
    "deep_ep": (("Buffer", "ElasticBuffer"), "DeepEP moves tokens by NVSHMEM"),
    "nvshmem.core": (("init",), "NVSHMEM moves data without a process group"),
    "transformer_engine_torch": (("CommOverlap", "CommOverlapP2P"), "Transformer Engine's user buffers bypass NCCL"),
    "torch.distributed._symmetric_memory": (("rendezvous", "empty"), "symmetric memory lets GPUs write to each other"),
}


def refuse_what_cannot_be_seen() -> None:
    """Make the first use of such a library an error that says what to switch off; having it installed is no fault."""
    sys.meta_path.insert(0, _Watcher())
    for name in _OUTSIDE_C10D:
        if name in sys.modules:
            _close(sys.modules[name])
    import torch.multiprocessing as workers

    workers.spawn = _refuse_spawn  # type: ignore[attr-defined]


def _refuse_spawn(*args: Any, **kwargs: Any) -> None:
    raise UnsupportedError("the script starts its own ranks (torch.multiprocessing.spawn); give `prism emulate` a "
                           "script that torchrun could launch")  # fmt: skip


def _close(module: ModuleType) -> None:
    names, why = _OUTSIDE_C10D[module.__name__]
    for name in names:
        if hasattr(module, name):
            setattr(module, name, _refusal(f"{module.__name__}.{name}", why))


def _refusal(what: str, why: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(f"{what} cannot be emulated: {why}; switch it off for this run")

    return refuse


class _Watcher(importlib.abc.MetaPathFinder):
    """Closes a library right after it is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Let the ordinary finders find it, then watch its loading."""
        if name not in _OUTSIDE_C10D:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _close(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
