"""The exceptions Prism raises on purpose.

PrismError                 anything Prism can explain; the command line exits 1
├── ScriptError            a program that fails by itself, or does what Prism cannot follow; exits 3
└── InputError             what the user gave is wrong: file, place, what to do; exits 2
    ├── BadFileError       a file cannot be read at all (missing, truncated, another format)
    ├── BadRowError        one value in a table is wrong
    ├── BadConfigError     a setting, a plan or a cluster file does not hold together
    ├── GraphError         an execution graph that would hang, or that contradicts itself
    └── MissingExtraError  a capability whose optional packages are not installed
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex


class PrismError(Exception):
    """Base of every error that Prism explains in one line."""

    exit_code = 1

    def __str__(self) -> str:
        """The message on one line, whatever names and values of a file are part of it."""
        return " ".join(super().__str__().splitlines())


class ScriptError(PrismError):
    """A program that cannot be checked or emulated: it fails by itself, or does what Prism cannot follow."""

    exit_code = 3

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output  # what the program printed, with its own traceback


class InputError(PrismError):
    """What the user gave is wrong; the message says where and how to fix it."""

    exit_code = 2


class BadFileError(InputError):
    """A file that cannot be read at all."""


class BadRowError(InputError):
    """One value in a table that is not what its column holds."""


class BadConfigError(InputError):
    """A setting, plan or cluster file that does not hold together."""


class GraphError(InputError):
    """An execution graph that would hang on a cluster, or that contradicts itself."""


class MissingExtraError(InputError):
    """A capability that needs an optional dependency."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs optional packages; install them with: {say_install(extra)}")


def say_install(extra: str) -> str:
    """The command that installs the packages of an extra, wherever Prism was installed from."""
    packages = _packages_of(extra, importlib.metadata.requires("prism-llm") or [])
    return " ".join(["pip install", *(shlex.quote(package) for package in packages)])


def _packages_of(extra: str, required: list[str]) -> list[str]:
    marked = [line.partition(";")[0].strip() for line in required if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    found: dict[str, None] = {}
    for package in marked:
        inner = re.match(r"prism-llm\[(.+)\]", package)
        names = [n for e in inner[1].split(",") for n in _packages_of(e.strip(), required)] if inner else [package]
        found.update(dict.fromkeys(names))
    return list(found)
