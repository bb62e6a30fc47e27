"""Compare the calls of ranks: members of a group make equal calls in one order, every send needs a receive.

Works on logs alone, so it also explains a run that stopped half-way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from prism.emulate.capture import Capture, CapturedEntry
from prism.emulate.problems import CallsDifferError, Problem, hang_problem, odd_problem

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class _Call:
    what: str
    bytes: int
    root: int

    @classmethod
    def of(cls, entry: CapturedEntry) -> _Call:
        return cls(entry.what, entry.compared_bytes, entry.peer)

    def describe(self, members: Sequence[int]) -> str:
        root = f" with root {members[self.root]}" if self.root >= 0 else ""
        size = f" of {self.bytes:,} bytes" if self.bytes > 0 else ""
        return f"{self.what}{size}{root}"


def check_calls(captures: Mapping[int, Capture]) -> None:
    """Raise CallsDifferError, naming the rank that differs from most, at the first call that does not meet."""
    _check_groups(captures)
    members = {g.name: g.ranks or range(c.world_size) for c in captures.values() for g in c.groups}
    calls: dict[str, dict[int, list[CapturedEntry]]] = defaultdict(dict)
    for rank, capture in captures.items():
        for entry in (*capture.entries, *capture.unmet):
            if entry.is_communication and entry.what not in ("send", "recv"):
                calls[entry.group].setdefault(rank, []).append(entry)
    found = [_compare(captures, name, members[name], by_rank) for name, by_rank in calls.items()]
    # A mistake of one rank may make other groups differ as well: the group with fewest odd ranks has the cause.
    problems = sorted((p for p in found if p is not None), key=lambda problem: len(problem.ranks))
    if problems:
        raise CallsDifferError(problems[0])
    for name, by_rank in calls.items():
        _check_exchanges(members[name], by_rank)
        _check_values(members[name], by_rank)
    _check_messages(captures, members)


def _check_exchanges(members: Sequence[int], by_rank: Mapping[int, list[CapturedEntry]]) -> None:
    """What each member sends to another in an all-to-all must be what the other expects of it."""
    place = {rank: position for position, rank in enumerate(members)}
    for index in range(max(map(len, by_rank.values()), default=0)):
        at = {r: calls[index] for r, calls in by_rank.items() if index < len(calls)}
        at = {r: call for r, call in at.items() if call.what == "all_to_all" and call.takes}
        ranks = list(at)
        columns = [place[r] for r in ranks]
        even = len(members)
        sent = np.array([call.sizes or (call.bytes // even,) * even for call in at.values()]).reshape(-1, even)
        taken = np.array([call.takes for call in at.values()]).reshape(-1, even)
        wrong = np.argwhere(sent[:, columns] != taken[:, columns].T)
        if not len(wrong):
            continue
        # The rank that most of the others disagree with is the odd one.
        odd = Counter(wrong.ravel().tolist()).most_common(1)[0][0]
        source, target = next(pair for pair in wrong.tolist() if odd in pair)
        text = (
            f"rank {ranks[odd]} and others disagree in all_to_all #{index} of a group of "
            f"{even}: rank {ranks[source]} sends {sent[source, columns[target]]:,} bytes{_at(at[ranks[source]])} to "
            f"rank {ranks[target]}, which expects {taken[target, columns[source]]:,} bytes"
        )
        raise CallsDifferError(odd_problem(text, [ranks[odd]], at[ranks[odd]].source))


def _check_values(members: Sequence[int], by_rank: Mapping[int, list[CapturedEntry]]) -> None:
    """Members must give elements of one type and reduce them in one way; backends compare neither."""
    for index in range(max(map(len, by_rank.values()), default=0)):
        at = {r: calls[index] for r, calls in by_rank.items() if index < len(calls) and calls[index].values}
        kinds = Counter(call.values for call in at.values())
        if len(kinds) > 1:
            usual, _ = kinds.most_common(1)[0]
            odd = next(call.values for call in at.values() if call.values != usual)
            ranks = {values: [r for r, call in at.items() if call.values == values] for values in (odd, usual)}
            one, most = at[ranks[odd][0]], at[ranks[usual][0]]
            text = (
                f"{name_ranks(ranks[odd])} {'call' if len(ranks[odd]) > 1 else 'calls'} {one.what} of {odd}{_at(one)} "
                f"where {name_ranks(ranks[usual])} {'call' if len(ranks[usual]) > 1 else 'calls'} it of "
                f"{usual}{_at(most)}; it is call #{index} of a group of {len(members)}"
            )
            outcome = "hang, fail or give wrong values"
            raise CallsDifferError(odd_problem(text, ranks[odd], one.source, outcome))


def _check_groups(captures: Mapping[int, Capture]) -> None:
    """Groups with a number are made by all ranks in one order; c10d hashes the names of those only members make."""
    made = {r: [(g.ranks, g.source) for g in c.groups if g.name.isdecimal()] for r, c in captures.items()}
    for index in range(max(map(len, made.values()), default=0)):
        at = {rank: groups[index] for rank, groups in made.items() if index < len(groups)}
        ranks, _ = Counter(ranks for ranks, _ in at.values()).most_common(1)[0]
        usual = next(group for group in at.values() if group[0] == ranks)
        for rank, group in at.items():
            if group[0] != ranks:
                _raise_group(rank, "makes a group of ranks", *group)
        for rank in set(made) - set(at):
            if captures[rank].status != "hung":  # one that stopped early may make it later
                _raise_group(rank, "does not make the group of ranks", ranks, usual[1])


def _raise_group(rank: int, verb: str, ranks: Sequence[int], source: str) -> NoReturn:
    place = f" ({source})" if source else ""
    text = (
        f"rank {rank} {verb} {_list(ranks)}{place}, unlike most ranks; every rank must make the same groups in the "
        "same order"
    )
    raise CallsDifferError(odd_problem(text, [rank], source))


def _compare(
    captures: Mapping[int, Capture], name: str, members: Sequence[int], by_rank: Mapping[int, list[CapturedEntry]]
) -> Problem | None:
    """The first call of a group in which its members differ."""
    present = [r for r in members if r in captures]
    lists = {r: [_Call.of(e) for e in by_rank.get(r, ())] for r in present}
    if len({tuple(calls) for calls in lists.values()}) < 2:
        return None
    for index in range(max(map(len, lists.values()))):
        at = {r: calls[index] for r, calls in lists.items() if index < len(calls)}
        kinds = Counter(at.values())
        if len(kinds) > 1:
            usual, _ = kinds.most_common(1)[0]
            odd = [r for r, call in at.items() if call != usual]
            return _describe_odd(members, by_rank, index, odd, at, usual)
        short = [r for r in present if r not in at]
        if short and _never_call(captures, short, lists, index):
            usual = next(iter(at.values()))
            first = next(iter(at))
            text = (
                f"{name_ranks(short)} never {'call' if len(short) > 1 else 'calls'} "
                f"{usual.describe(members)} #{index} of a group of {len(members)}, which {name_ranks(list(at))} "
                f"{'wait' if len(at) > 1 else 'waits'} in{_at(by_rank[first][index])}"
            )
            return hang_problem(text, short if len(short) <= len(at) else list(at), by_rank[first][index].source)
    return None


def _describe_odd(
    members: Sequence[int],
    by_rank: Mapping[int, list[CapturedEntry]],
    index: int,
    odd: Sequence[int],
    at: Mapping[int, _Call],
    usual: _Call,
) -> Problem:
    one = odd[0]
    alike = [r for r in odd if at[r] == at[one]]
    most = [r for r, call in at.items() if call == usual]
    theirs, mine = by_rank[most[0]], by_rank[one]
    after = [_Call.of(calls[index + 1]) if index + 1 < len(calls) else None for calls in (mine, theirs)]
    swapped = "; the two make these calls in opposite orders" if after == [usual, at[one]] else ""
    text = (
        f"{name_ranks(alike)} {'call' if len(alike) > 1 else 'calls'} "
        f"{at[one].describe(members)}{_at(mine[index])} where {name_ranks(most)} "
        f"{'call' if len(most) > 1 else 'calls'} {usual.describe(members)}{_at(theirs[index])}; it is call "
        f"#{index} of a group of {len(members)}{swapped}"
    )
    return odd_problem(text, odd, mine[index].source)


def _never_call(
    captures: Mapping[int, Capture], short: Sequence[int], lists: Mapping[int, Sequence[_Call]], index: int
) -> bool:
    """Whether members that make fewer calls never make this one, rather than having been stopped a little earlier."""
    if any(captures[r].status == "hung" for r in short):
        return False
    others = [r for r in lists if r not in short]
    if all(captures[r].status == "ended" for r in short) and any(captures[r].status == "hung" for r in others):
        return True
    # Stopped after equally many steps, and at least one call short in every one of them.
    steps = {captures[r].num_steps for r in lists}
    behind = min(len(lists[r]) for r in others) - max(len(lists[r]) for r in short)
    return len(steps) == 1 and min(steps) > 0 and behind >= min(steps)


def _check_messages(captures: Mapping[int, Capture], members: Mapping[str, Sequence[int]]) -> None:
    sent: dict[tuple[str, int, int, int], list[CapturedEntry]] = defaultdict(list)
    received: dict[tuple[str, int, int, int], list[CapturedEntry]] = defaultdict(list)
    for rank, capture in captures.items():
        for entry in capture.entries:
            if entry.what == "send":
                sent[entry.group, rank, members[entry.group][entry.peer], entry.tag].append(entry)
            elif entry.what == "recv":
                received[entry.group, members[entry.group][entry.peer], rank, entry.tag].append(entry)
    for key in sorted({*sent, *received}):
        _, source, target, tag = key
        if source not in captures or target not in captures:
            continue
        out, into = sent.get(key, []), received.get(key, [])
        for number, (a, b) in enumerate(zip(out, into, strict=False)):
            if a.bytes != b.bytes:
                text = (
                    f"rank {source} sends {a.bytes:,} bytes{_at(a)} as message #{number} to rank {target}, which "
                    f"expects {b.bytes:,} bytes{_at(b)}"
                )
                raise CallsDifferError(odd_problem(text, [source, target], a.source))
        pair = [captures[source], captures[target]]
        steps = min(c.num_steps for c in pair)
        if any(c.status == "hung" for c in pair) or not steps or abs(len(out) - len(into)) < steps:
            continue
        behind, ahead = pair if len(out) < len(into) else pair[::-1]
        if behind.status == "done" and behind.num_steps < ahead.num_steps:
            continue  # it was stopped after fewer iterations
        tagged = f" with tag {tag}" if tag else ""
        more = (out if len(out) > len(into) else into)[min(len(out), len(into))]
        if len(out) > len(into):
            text = f"rank {source} sends{_at(more)} to rank {target}{tagged}, which makes only {len(into)} receives"
        else:
            text = f"rank {target} receives{_at(more)} from rank {source}{tagged}, which makes only {len(out)} sends"
        raise CallsDifferError(hang_problem(text, [source, target], more.source))


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks for a message: the first few, and how many more."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {_list(ranks)}"


def _list(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_NAMED]))
    return shown if len(ranks) <= _MOST_NAMED else f"{shown} and {len(ranks) - _MOST_NAMED} more"


def _at(entry: CapturedEntry) -> str:
    return f" ({entry.source})" if entry.source else ""
