"""The process of a test: it calls the program in another process, and gets nothing but plain values. Sent as text.

Its text follows that of `program_side.py`, whose `encode` and `decode` it uses.
"""

import builtins
import importlib
import json
import os
import sys
from typing import Any

from prism.evaluate.run.scoring.program_side import decode, encode, take  # cut out when sent

PASSED, FAILED, UNSPLIT = 0, 1, 3
_MAX_ANSWER_BYTES = 8 << 20


class Unsplit(BaseException):
    """The test needs more of the program than plain values."""


class Line:
    """The other side of the pipes; `answers` and `asks` are descriptors 3 and 4."""

    def __init__(self) -> None:
        self.answers, self.asks = os.fdopen(3, "r"), os.fdopen(4, "w")

    def read(self) -> Any:
        """The next answer."""
        text = self.answers.readline(_MAX_ANSWER_BYTES)
        if not text.endswith("\n"):
            raise EOFError
        return json.loads(text)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let the program call one of its functions."""
        try:
            request = {"name": name, "args": encode(list(args)), "kwargs": encode(kwargs)}
        except TypeError:
            raise Unsplit from None
        print(json.dumps(request), file=self.asks, flush=True)
        found = self.read()
        if "unsplit" in found:
            raise Unsplit
        if "raised" in found:
            kind: Any = getattr(builtins, str(found["raised"]), None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise kind(found["text"]) if is_error else RuntimeError(found["text"])
        for mine, theirs in zip(args, decode(found["args"]), strict=False):
            change(mine, theirs)
        return decode(found["value"])


def change(mine: Any, theirs: Any) -> None:
    """Let a list, a dict or a set that the program changed be seen changed here."""
    if type(mine) is not type(theirs) or mine == theirs:
        return
    if isinstance(mine, (list, bytearray)):
        mine[:] = theirs
    elif isinstance(mine, (dict, set)):
        mine.clear()
        mine.update(theirs)


class Proxy:
    """A function of the program; anything but a call needs the program itself."""

    def __init__(self, name: str, line: Line) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_line", line)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._line.call(self._name, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        raise Unsplit

    def __eq__(self, other: object) -> bool:
        raise Unsplit

    __hash__ = None  # type: ignore[assignment]


def build_space(line: Line, test: str) -> dict[str, Any]:
    """The names that a test may use, as the program left them."""
    words = _inner_names(compile(test, "test", "exec"))
    space: dict[str, Any] = {"__name__": "__main__"}
    for name, (kind, held) in line.read().items():
        if kind == "value":
            space[name] = decode(held)
        elif kind == "call":
            space[name] = Proxy(name, line)
        elif kind == "module" and held in sys.stdlib_module_names:
            space[name] = importlib.import_module(held)
        elif name in words:
            raise Unsplit
    return space


def _inner_names(code: Any) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            found |= _inner_names(constant)
    return found


def check() -> None:
    """Run the test on stdin against the program at the other end of the pipes."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the program cannot look into this process
    test = take() or ""
    try:
        line = Line()
        print("closed", file=line.asks, flush=True)
        space = build_space(line, test)
        exec(compile(test, "test", "exec"), space)
    except Unsplit:
        os._exit(UNSPLIT)
    except EOFError:
        os._exit(FAILED)  # the program itself reports why it ended
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".strip()
        os.write(2, text.encode(errors="replace")[:2000] + b"\n")
        os._exit(FAILED)
    os._exit(PASSED)


if __name__ == "__main__":
    check()
