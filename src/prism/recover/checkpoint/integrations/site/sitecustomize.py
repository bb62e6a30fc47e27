"""Found by Python at the start of every process of a job under `prism supervise --checkpoint auto`.

Standard library only. It waits for the job to import a trainer, and then hands that module to Prism. Whatever goes
wrong in here is told in a line and leaves the job as it would be without.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

# A module of a trainer, and the module of Prism that attaches to it.
_ATTACHED_BY = {
    "transformers.trainer": "hugging_face",
    "lightning.pytorch.trainer.trainer": "lightning_trainer",
    "pytorch_lightning.trainer.trainer": "lightning_trainer",
    "deepspeed.runtime.engine": "deepspeed_engine",
    "torchtitan.components.checkpointer.dcp": "torchtitan_manager",
    "megatron.training.training": "megatron_training",
    "megatron.core.pipeline_parallel.schedules": "megatron_training",
}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the other finders find a trainer, and adds a last step to its loading."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in _ATTACHED_BY:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_attach(module):  # type: ignore[no-untyped-def]
            execute(module)
            _attach(name, module)  # type: ignore[no-untyped-call]

        spec.loader.exec_module = execute_and_attach  # type: ignore[method-assign]
        return spec


def _attach(name, module):  # type: ignore[no-untyped-def]
    try:
        which = f"prism.recover.checkpoint.integrations.{_ATTACHED_BY[name]}"
        importlib.import_module(which).attach(module)
    except Exception as error:  # the job must run as it would without Prism
        sys.stderr.write(f"prism: no automatic checkpoints for {name} ({type(error).__name__}: {error})\n")


def _run_the_next_sitecustomize() -> None:
    """Run the sitecustomize that ours hides."""
    here = Path(__file__).resolve().parent
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_run_the_next_sitecustomize()
if os.environ.get("PRISM_CHECKPOINT") and not os.environ.get("PRISM_ROLE"):
    sys.meta_path.insert(0, _AfterImport())
