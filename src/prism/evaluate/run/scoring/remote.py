"""Objects of the other process: of a program, seen by its test, or of the test, seen by the program. Sent as text."""

from typing import Any, Protocol

SHOWN = ("__name__", "__doc__")  # what is seen of any object of the other process
UNARY = ("neg", "pos", "invert", "abs")
BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift"]


class Asker(Protocol):
    """The end of the pipes that an object is asked through."""

    trusts: bool
    classes: set[int]

    def ask(self, request: dict[str, Any]) -> Any:
        """The value that answers a request."""

    def call(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives."""

    def special(self, number: int, name: str, args: list[Any]) -> Any:
        """What an operator gives."""

    def encode(self, value: Any) -> Any:
        """A value as JSON."""

    def make(self, remote: "Remote") -> "Made":
        """The same object as one whose operators are asked."""


class Remote:
    """An object of the other process. Its operators are not asked: an object that equals everything equals nothing."""

    __slots__ = ("_has_plain", "_number", "_peer")

    def __init__(self, peer: Asker, number: int, has_plain: bool) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_has_plain", has_plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self._peer.call(self._number, args, kwargs)
        return self._peer.make(value) if type(value) is Remote and self._number in self._peer.classes else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in SHOWN:
            raise AttributeError(name)
        return self._peer.ask({"op": "get", "of": self._number, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask({"op": "set", "of": self._number, "name": name, "value": self._peer.encode(value)})

    def __eq__(self, other: object) -> bool:
        if self is other or not self._has_plain or isinstance(other, Remote):
            return self is other
        return bool(_special(self, "plain") == other)  # a list of a kind of its own is compared as the list that it is

    __hash__ = object.__hash__

    def __iter__(self) -> Any:
        return _special(self, "iter")

    def __enter__(self) -> Any:
        return _special(self, "enter")

    def __exit__(self, *error: object) -> None:
        _special(self, "exit")

    def __deepcopy__(self, memo: object) -> Any:
        return _special(self, "deepcopy")

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and bool(self._peer.special(value._number, "isinstance", [self]))


class Made(Remote):
    """An object whose class the test called itself: it is the operators of that class that are tested."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """With plain data as every other; with another object as the program says, if it can tell it from nothing."""
        if self is other or not (isinstance(other, Remote) or self._peer.trusts):
            return super().__eq__(other)
        return _special(self, "eq", other) is True and _special(self, "eq", None) is not True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int(_special(self, "hash"))


_OTHER_WAY = {"lt": "gt", "gt": "lt", "le": "gt", "ge": "lt"}


def _special(of: Remote, name: str, *args: Any) -> Any:
    return of._peer.special(of._number, name, list(args))


def _order(of: Made, name: str, other: object) -> bool:
    """The program's order of two objects of its own, if it does not hold both ways."""
    if of._peer.trusts:
        return bool(_special(of, name, other))
    if not isinstance(other, Remote):
        raise TypeError(f"an object of the program was compared with {other!r:.40}")
    return _special(of, name, other) is True and _special(of, _OTHER_WAY[name], other) is not True


def _calculate(of: Made, name: str, *args: Any) -> Any:
    """An operator's value; with plain data it must be an object again, or it could be any number that is wanted."""
    value = _special(of, name, *args)
    if of._peer.trusts or isinstance(value, Made):
        return value
    if isinstance(value, Remote):
        return of._peer.make(value)
    if args and not isinstance(args[0], Remote):
        raise TypeError(f"an object of the program and {args[0]!r:.40} gave plain data")
    return value


def _add_operators() -> None:
    for name in ("len", "next", "str", "repr", "bool", "int", "float", "getitem", "setitem", "delitem", "copy"):
        setattr(Remote, f"__{name}__", lambda self, *args, name=name: _special(self, name, *args))
    setattr(Made, "__contains__", lambda self, item: bool(_special(self, "contains", item)))  # noqa: B010
    for name in (*UNARY, *BINARY, *(f"r{name}" for name in BINARY)):
        setattr(Made, f"__{name.strip('_')}__", lambda self, *args, name=name: _calculate(self, name, *args))
    for name in _OTHER_WAY:
        setattr(Made, f"__{name}__", lambda self, other, name=name: _order(self, name, other))


_add_operators()
