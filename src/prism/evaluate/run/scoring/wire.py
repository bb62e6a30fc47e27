"""What crosses between a program and its test: plain data by value, anything else by number. Sent as text.

Each process has a `Peer`. Nothing is pickled: a value is JSON, and an object of the other process is a `Remote`, whose
attributes and calls are requests. The process of the test decides what may be asked of it, and what it believes.
"""

import builtins
import collections
import copy
import datetime
import decimal
import enum
import fractions
import io
import json
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from prism.evaluate.run.scoring.remote import BINARY, SHOWN, UNARY, Made, Remote  # cut out when sent

Message = dict[str, Any]

_MAX_DEPTH = 60
_MAX_LINE_BYTES = 8 << 20
_PLAIN = (bool, int, float, str, type(None))
_MANY: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_RICH: dict[str, tuple[Any, Callable[[Any], list[Any]]]] = {
    "Counter": (collections.Counter, lambda v: [dict(v)]),
    "OrderedDict": (collections.OrderedDict, lambda v: [list(v.items())]),
    "defaultdict": (collections.defaultdict, lambda v: [v.default_factory, dict(v)]),
    "deque": (collections.deque, lambda v: [list(v), v.maxlen]),
    "Fraction": (fractions.Fraction, lambda v: [v.numerator, v.denominator]),
    "Decimal": (decimal.Decimal, lambda v: [str(v)]),
    "datetime": (datetime.datetime, lambda v: [*v.timetuple()[:6], v.microsecond]),
    "date": (datetime.date, lambda v: [v.year, v.month, v.day]),
    "timedelta": (datetime.timedelta, lambda v: [v.days, v.seconds, v.microseconds]),
    "complex": (complex, lambda v: [v.real, v.imag]),
    "range": (range, lambda v: [v.start, v.stop, v.step]),
    "slice": (slice, lambda v: [v.start, v.stop, v.step]),
    "bytes": (bytes, lambda v: [list(v)]),
    "bytearray": (bytearray, lambda v: [list(v)]),
}
_RICH_NAMES = {kind: name for name, (kind, _) in _RICH.items()}
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
# What one process may ask of an object of the other, beside its attributes and calls.
_ASKED: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (*UNARY, *BINARY, *_COMPARED)},
    **{f"r{name}": lambda own, other, name=name: getattr(operator, name)(other, own) for name in BINARY},
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem", "contains")},
    **{kind.__name__: kind for kind in (len, iter, next, str, repr, bool, int, float, hash, isinstance)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "enter": lambda own: own.__enter__(),
    "exit": lambda own: own.__exit__(None, None, None),
    "plain": lambda own: _base_of(own),
}


class Refused(AttributeError):
    """The other process asked for what it may not have."""


class Peer:
    """One end of the two pipes; requests of both processes may be nested in each other."""

    def __init__(self, reader: Any, writer: Any, *, trusts: bool) -> None:
        self.reader, self.writer = reader, writer
        self.trusts = trusts  # the program believes its test; the test believes nothing
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.remotes: dict[int, Any] = {}
        self.classes: set[int] = set()  # what the test names as one names a class
        self.num_asked = 0

    # -- values

    def encode(self, value: Any, depth: int = 0) -> Any:
        """A value as JSON; what is not plain data gets a number."""
        kind = type(value)
        if depth > _MAX_DEPTH:
            raise TypeError("too deep")
        if kind in _PLAIN:
            return value if kind is not int or -(2**53) < value < 2**53 else {"int": hex(value)}
        if kind.__name__ in _MANY and kind is _MANY[kind.__name__]:
            return {kind.__name__: [self.encode(item, depth + 1) for item in value]}
        if kind is dict:
            return {"dict": [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in value.items()]}
        if kind in _RICH_NAMES:
            name = _RICH_NAMES[kind]
            return {"rich": [name, *(self.encode(part, depth + 1) for part in _RICH[name][1](value))]}
        if isinstance(value, Remote):
            return {"yours": value._number}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"named": [kind.__name__, list(value._fields), [self.encode(v, depth + 1) for v in value]]}
        if isinstance(value, type) and getattr(builtins, kind_name := value.__name__, None) is value:
            return {"type": kind_name}
        if kind.__module__ == "numpy" and hasattr(value, "tolist"):
            return {"numpy": [str(value.dtype), self.encode(value.tolist(), depth + 1)]}
        if kind.__name__ in ("dict_keys", "dict_values", "dict_items"):
            return {"view": [kind.__name__, self.encode(list(value), depth + 1)]}
        return self._refer(value)

    def _refer(self, value: Any) -> Any:
        if isinstance(value, (str, int, float)) and isinstance(value, enum.Enum):
            return self.encode(_base_of(value))
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        kind = "class" if isinstance(value, type) else "iterator" if hasattr(value, "__next__") else "object"
        found: Message = {"mine": self.numbers[id(value)], "kind": kind, "plain": _base_of(value) is not None}
        if kind == "class" and issubclass(value, Exception):
            found["errors"] = [each.__name__ for each in value.__mro__]
        return found

    def decode(self, value: Any) -> Any:
        """What `encode` of the other process was given."""
        if not isinstance(value, dict):
            return value
        if "mine" in value:
            return self._meet(value)
        ((kind, held),) = value.items()
        if kind in _MANY:
            return _MANY[kind](self.decode(item) for item in held)
        if kind == "dict":
            return {self.decode(k): self.decode(v) for k, v in held}
        if kind == "yours":
            return self.objects[held]
        return self._decode_rare(kind, held)

    def _decode_rare(self, kind: str, held: Any) -> Any:
        if kind == "int":
            return int(held, 16)
        if kind == "rich":
            return _RICH[held[0]][0](*(self.decode(part) for part in held[1:]))
        if kind == "named":
            return collections.namedtuple(held[0], held[1])(*(self.decode(v) for v in held[2]))
        if kind == "type":
            found = getattr(builtins, held)
            if isinstance(found, type):
                return found
        if kind == "numpy":
            import numpy

            return numpy.array(self.decode(held[1]), dtype=held[0])[()]
        if kind == "view":
            items = self.decode(held[1])
            views: dict[str, Any] = {"dict_keys": dict.fromkeys, "dict_items": dict}
            views["dict_values"] = lambda values: dict(enumerate(values))
            return getattr(views[held[0]](items), held[0][5:])()
        raise ValueError(kind)

    def _meet(self, told: Message) -> Any:
        number = int(told["mine"])
        if number not in self.remotes:
            if told["kind"] == "class" and told.get("errors"):
                self.remotes[number] = make_error(told["errors"])
            else:
                made = Made if self.trusts else Remote
                self.remotes[number] = made(self, number, bool(told["plain"]))
        found = self.remotes[number]
        return _iterate(found) if told["kind"] == "iterator" else found

    # -- asking

    def call(self, number: int, args: tuple[Any, ...], kwargs: Message) -> Any:
        """Let the other process call one of its objects; what it changed in lists and the like is changed here.

        Only where it returns nothing, as `list.sort` does: else a program could empty the list that its answer is
        compared with.
        """
        found = self.request(
            {"op": "call", "of": number, "args": self.encode(list(args)), "kwargs": self.encode(kwargs)}
        )
        value = self.decode(found["value"])
        if value is None:
            for mine, theirs in zip(args, self.decode(found["args"]), strict=True):
                change(mine, theirs)
        return value

    def make(self, remote: Remote) -> Made:
        """The same object as one whose operators are asked."""
        made = self.remotes[remote._number] = Made(self, remote._number, remote._has_plain)
        return made

    def special(self, number: int, name: str, args: list[Any]) -> Any:
        """Ask for an operator of an object."""
        return self.ask({"op": name, "of": number, "args": self.encode(args)})

    def ask(self, request: Message) -> Any:
        """The value that answers a request."""
        return self.decode(self.request(request)["value"])

    def request(self, request: Message) -> Message:
        """Send a request, serve what the other asks meanwhile, and return the answer."""
        self.num_asked += 1
        self._send(request)
        while "op" in (found := self._read()):
            self._send(self.answer(found))
        sys.stdout.write(found.get("printed", ""))
        if "raised" in found:
            error = self.decode(found["raised"])
            if not (isinstance(error, type) and issubclass(error, Exception)):
                raise EOFError  # no error of a program ends the process of its test
            raise error(*self.decode(found["with"]))
        return found

    def _send(self, message: Message) -> None:
        self.writer.write(json.dumps(message) + "\n")
        self.writer.flush()

    def _read(self) -> Message:
        text = self.reader.readline(_MAX_LINE_BYTES)
        if not text.endswith("\n"):
            raise EOFError
        return json.loads(text)  # type: ignore[no-any-return]

    # -- answering

    def serve(self) -> None:
        """Answer until the other process is gone."""
        while True:
            try:
                request = self._read()
            except (EOFError, ValueError):
                return
            self._send(self.answer(request))

    def answer(self, request: Message) -> Message:
        """Do what is asked; what is printed meanwhile goes back too."""
        shown, sys.stdout = sys.stdout, io.StringIO() if self.trusts else sys.stdout
        try:
            found = self._do(request)
        except Exception as error:
            named = self.encode([part if type(part) in _PLAIN else str(part) for part in error.args])
            found = {"raised": self._refer(type(error)), "with": named}
        finally:
            printed, sys.stdout = sys.stdout, shown
        return found | ({"printed": printed.getvalue()} if isinstance(printed, io.StringIO) and self.trusts else {})

    def _do(self, request: Message) -> Message:
        op = request["op"]
        if op == "names":
            return {"value": self.encode({name: self.look(name) for name in self.decode(request["names"])})}
        if op == "input":
            return {"value": self.encode(input(request["text"]))}
        own = self.objects[request["of"]]
        if op in ("get", "set"):
            name = str(request["name"])
            is_shown = op == "get" and name in SHOWN
            if not (self.trusts or is_shown) and (name.startswith("_") or not _is_of_test(own)):
                raise Refused(f"{type(own).__name__}.{name}")
            if op == "set":
                if not self.trusts and callable(getattr(type(own), name, None)):
                    raise Refused(f"the method {type(own).__name__}.{name}")
                setattr(own, name, self.decode(request["value"]))
            return {"value": self.encode(getattr(own, name)) if op == "get" else None}
        args = self.decode(request["args"])
        if op != "call":
            return {"value": self.encode(_ASKED[op](own, *args))}
        value = own(*args, **self.decode(request["kwargs"]))
        return {"value": self.encode(value), "args": self.encode(args)}

    def look(self, name: str) -> Any:
        """A name that the other process asks for; the program's side says which there are."""
        raise Refused(name)


def make_error(names: list[str]) -> Any:
    """An exception of the program by its names, the nearest first: it is caught as what it derives from."""
    known = (getattr(builtins, name, None) for name in names)
    base = next((k for k in known if isinstance(k, type) and issubclass(k, Exception)), Exception)
    return base if base.__name__ == names[0] else type(str(names[0]), (base,), {})


def change(mine: Any, theirs: Any) -> None:
    """Let a list, a dict or a set that the program changed be seen changed here, and what is in it too."""
    if type(mine) is not type(theirs):
        return
    if isinstance(mine, list):
        if len(mine) == len(theirs):
            for old, new in zip(mine, theirs, strict=True):
                change(old, new)
        if not (len(mine) == len(theirs) and all(map(_same, mine, theirs))):
            mine[:] = theirs
    elif isinstance(mine, (dict, set, bytearray, collections.deque)) and not _same(mine, theirs):
        mine.clear()
        mine.extend(theirs) if isinstance(mine, (bytearray, collections.deque)) else mine.update(theirs)


def _same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and bool(old == new)


def _iterate(remote: Any) -> Iterator[Any]:
    while True:
        try:
            item = next(remote)
        except StopIteration:
            return
        yield item


def _is_of_test(own: Any) -> bool:
    return type(own).__module__ == "__main__" and not isinstance(own, type)


def _base_of(value: Any) -> Any:
    """The plain data in an object of a class that derives from a plain one."""
    if isinstance(value, dict):
        return dict(dict.items(value))
    many: dict[type, Any] = {
        list: list.__iter__,
        tuple: tuple.__iter__,
        set: set.__iter__,
        frozenset: frozenset.__iter__,
    }
    one: dict[type, Any] = {str: str.__str__, int: int.__int__, float: float.__float__}
    for kind, read in (many | one).items():
        if isinstance(value, kind):
            return kind(read(value))
    return None
