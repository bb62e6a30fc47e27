"""Read a pickle of plain values only: containers, numbers, text. Anything else is refused, and nothing is run."""

from __future__ import annotations

import io
import pickle
from typing import Any

from prism.errors import BadFileError


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler without classes or functions: every opcode that would make or call one ends here."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and a dump holds plain values only")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def read_plain_pickle(data: bytes, where: str) -> Any:
    """The value in a pickle of plain containers, numbers and text."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:
        # The C unpickler ends damaged input with many kinds of errors (EOFError, KeyError, MemoryError, ...).
        raise BadFileError(
            f"{where}: not a plain dump ({type(error).__name__}: {str(error)[:120]}); write it again, or leave it out"
        ) from None
