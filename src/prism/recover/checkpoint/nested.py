"""Nested states and the flat names of their parts. torch's names and paths hold the keys of dicts as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch.distributed.checkpoint._nested_dict import flatten_state_dict


def set_value(state: Any, path: tuple[str | int, ...], value: Any) -> None:
    """Set one part of a nested state."""
    *outer, last = path
    for part in outer:
        state = state[_key_of(state, part)]
    state[_key_of(state, last)] = value


def with_keys_of(template: Any, filled: Any) -> Any:
    """A nested state with the keys of its template, such as numbers, in place of their text."""
    if isinstance(template, Mapping):
        found = {key: str(key) for key in template if str(key) in filled}
        return {**template, **{key: with_keys_of(template[key], filled[text]) for key, text in found.items()}}
    if isinstance(template, list):
        return [with_keys_of(*pair) for pair in zip(template, filled, strict=True)] if template else template
    return filled


def find_without_place(saved: Iterable[str], state: Mapping[str, Any]) -> list[str]:
    """Saved parts of the state's own dicts for which the dicts have no entry. Stateful objects place their parts."""
    plain = {name: value for name, value in state.items() if isinstance(value, Mapping)}
    known = flatten_state_dict(dict(plain))[0]
    return sorted(s for s in saved if s not in known and any(s.startswith(f"{name}.") for name in plain))


def _key_of(container: Any, part: str | int) -> Any:
    if not isinstance(container, Mapping) or part in container:
        return part
    return next((key for key in container if str(key) == part), part)
