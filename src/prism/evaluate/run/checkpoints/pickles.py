"""Pickles read without running anything: every name in them becomes a stand-in that only keeps what it was given."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any


class Standin:
    """An object of some class that is not imported: `args` and `fields` are what the pickle says of it."""

    kind = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.fields: dict[str, Any] = dict(kwargs)

    def __new__(cls, *args: Any, **kwargs: Any) -> Standin:
        self = super().__new__(cls)
        self.args, self.fields = args, {}
        return self

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.fields.update(part)
            else:
                self.args += (part,)

    def __setitem__(self, key: Any, value: Any) -> None:  # pickles fill subclasses of dict so
        self.fields[str(key)] = value

    def append(self, value: Any) -> None:
        """Pickles fill subclasses of list so."""

    def extend(self, values: Any) -> None:
        """Pickles fill subclasses of list so."""


class Reader(pickle.Unpickler):
    """`known` gives what stands for a name, as "module.name"; all other names get a stand-in of their own."""

    def __init__(
        self, handle: IO[bytes], known: dict[str, Any], persistent: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(handle, encoding="utf-8")
        self._known = known
        self._persistent = persistent
        self._made: dict[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Never imports."""
        full = f"{module}.{name}"
        if full in self._known:
            return self._known[full]
        if module == "torch" and (name.islower() or "_" in name):
            return name  # a dtype or a layout goes by its name
        if full not in self._made:
            self._made[full] = type("Standin", (Standin,), {"kind": full})
        return self._made[full]

    def persistent_load(self, pid: Any) -> Any:
        """A tensor's storage."""
        if self._persistent is None:
            raise pickle.UnpicklingError("it refers to something outside of itself")
        return self._persistent(pid)


PLAIN = {
    "collections.OrderedDict": OrderedDict,  # of a module's state, which also carries attributes
    "collections.defaultdict": lambda *args: {},
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    "builtins.slice": slice,
    "builtins.complex": complex,
    "builtins.bytearray": bytearray,
    "torch.Size": tuple,
    "torch.serialization._get_layout": str,
}
