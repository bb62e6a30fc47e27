"""What the folder held at a moment: its sources, and what could not be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from prism.serve.sources.characterized import Characterized
from prism.serve.sources.diagnosed import Diagnosed
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.predicted import Predicted
from prism.serve.sources.printed import Printed
from prism.serve.sources.supervised import Supervised
from prism.serve.sources.verdicts import VerdictFile
from prism.serve.sources.watched import ToldFindings, Watched

Source = Diagnosed | Watched | ToldFindings | Supervised | VerdictFile | Evaluated | Predicted | Characterized | Printed
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that looked like one of ours and could not be read."""

    path: str
    message: str
    since_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file whose content may not be true any more: it is gone, broken, or no longer written to."""

    path: str
    state: Literal["gone", "broken", "stale"]
    since_ns: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the folder held when it was last looked at; a new one has a higher version."""

    version: int = 0
    looked_ns: int = 0
    sources: tuple[Source, ...] = ()
    problems: tuple[Problem, ...] = ()
    states: tuple[FileState, ...] = ()
    num_files: int = 0
    files_left_out: bool = False  # more files are in the folder than are looked at
    num_archived: int = 0  # sources that are not in `sources`, because many newer ones are
    _made: dict[str, Any] = field(default_factory=dict, compare=False)

    def all_of(self, kind: type[T]) -> list[T]:
        """The sources of one kind, in order of place."""
        return [source for source in self.sources if isinstance(source, kind)]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value that views derive from this snapshot, computed on first use."""
        if name not in self._made:
            self._made[name] = make()
        return cast(T, self._made[name])

    def is_stale(self, path: str) -> bool:
        """Whether a file that a process should write to has not changed for long."""
        return any(state.path == path and state.state == "stale" for state in self.states)
