"""Libraries that move data outside process groups are refused at their first use, not before."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from prism.emulate.inside.after_import import _Watcher
from prism.emulate.inside.refusals import _OUTSIDE_C10D, _close
from prism.emulate.inside.session import UnsupportedError

LIBRARIES = [(module, name) for module, (names, _) in _OUTSIDE_C10D.items() for name in names]


@pytest.mark.parametrize(("module", "name"), [pair for pair in LIBRARIES if not pair[0].startswith("torch.")])
def test_a_library_that_communicates_outside_process_groups_is_refused_when_used(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.joinpath(*module.split(".")[:-1])
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath(f"{module.split('.')[-1]}.py").write_text(f"class {name}: pass\nversion = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [_Watcher(module, _close), *sys.meta_path])
    for part in (module.split(".")[0], module):
        monkeypatch.delitem(sys.modules, part, raising=False)
    library = importlib.import_module(module)
    assert library.version == 3  # to have it installed is no fault
    with pytest.raises(UnsupportedError, match=rf"{module}\.{name} cannot be emulated: .*; switch it off"):
        getattr(library, name)(1, group=None)
    sys.modules.pop(module)


def test_symmetric_memory_of_torch_is_refused_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    library = importlib.import_module("torch.distributed._symmetric_memory")
    for name in ("rendezvous", "empty"):
        monkeypatch.setattr(library, name, getattr(library, name))  # puts the originals back afterwards
    _close(library)
    with pytest.raises(UnsupportedError, match="symmetric memory lets GPUs write to each other"):
        library.rendezvous(None, "0")
