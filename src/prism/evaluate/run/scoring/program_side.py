"""The process of a program that a model wrote: it runs, then answers calls with plain values. Sent as text."""

import contextlib
import json
import os
import sys
from typing import Any

_PLAIN = (bool, int, float, str, type(None))
_MAX_DEPTH = 60


def encode(value: Any, depth: int = 0) -> Any:
    """A plain value as JSON; raises TypeError for anything that has a life of its own."""
    kind = type(value)
    if depth > _MAX_DEPTH:
        raise TypeError("too deep")
    if kind in _PLAIN:
        return value if kind is not int or -(2**53) < value < 2**53 else {"int": str(value)}
    if kind in (list, tuple, set, frozenset):
        return {kind.__name__: [encode(item, depth + 1) for item in value]}
    if kind is dict:
        return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    raise TypeError(kind.__name__)


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind in ("list", "tuple", "set", "frozenset"):
        make: Any = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
        return make(decode(item) for item in held)
    if kind == "dict":
        return {decode(k): decode(v) for k, v in held}
    if kind == "int":
        return int(held)
    if kind in ("bytes", "bytearray"):
        return (bytes if kind == "bytes" else bytearray).fromhex(held)
    if kind == "range":
        return range(*held)
    if kind == "complex":
        return complex(*held)
    raise ValueError(kind)


def describe(space: dict[str, Any]) -> dict[str, Any]:
    """What the program left: plain values, things to call, modules by name; all else is `other`."""
    found: dict[str, Any] = {}
    for name, value in space.items():
        if name.startswith("__"):
            continue
        if type(value) is type(sys):
            found[name] = ["module", value.__name__]
        elif callable(value):
            found[name] = ["class" if isinstance(value, type) else "call", None]
        else:
            try:
                found[name] = ["value", encode(value)]
            except TypeError:
                found[name] = ["other", None]
    return found


def answer(space: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Call one thing; the arguments go back too, since a call may change them."""
    args, kwargs = decode(request["args"]), decode(request["kwargs"])
    try:
        given = space[request["name"]](*args, **kwargs)
    except Exception as error:
        return {"raised": type(error).__name__, "text": str(error)[:500]}
    try:
        return {"value": encode(given), "args": encode(list(args))}
    except TypeError:
        return {"unsplit": True}


def take() -> str | None:
    """The next text on stdin, and no byte more: what follows is not for the program to find."""
    head = os.read(0, 12)
    if not head:
        return None
    left, parts = int(head), []
    while left:
        parts.append(os.read(0, min(left, 65536)))
        left -= len(parts[-1])
    return b"".join(parts).decode(errors="surrogatepass")


def main() -> None:
    """Run the program on stdin; then end it, or answer its test over the pipes 3 and 4."""
    sys.argv = ["program"]
    space: dict[str, Any] = {"__name__": "__main__"}
    lines = None
    with contextlib.suppress(OSError):  # it runs alone
        lines = (os.fdopen(3, "r"), os.fdopen(4, "w"))
    if lines is not None:
        lines[0].readline()  # the checker has closed itself to us
    exec(compile(take() or "", "program", "exec"), space)
    if lines is None:
        exec(compile(take() or "", "last", "exec"), {})
        os._exit(0)
    asked, answers = lines
    print(json.dumps(describe(space)), file=answers, flush=True)
    for line in asked:
        print(json.dumps(answer(space, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
