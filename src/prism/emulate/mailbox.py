"""What live ranks sent to each other, and which rank waits for what. It has no sockets: requests in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from typing import Any

from prism.emulate.comparing import name_ranks
from prism.emulate.inside.shares import take_share
from prism.emulate.shared_keys import KeyRecording, SharedKeys

Answer = tuple[str, Any]
_Key = tuple[str, str, int]
Reply = Callable[[Answer], None]
_LIKENESS = 256  # first bytes of a message, by which like ones are found
_MOST_NAMED = 4
_MORE_CALLS = 2  # stages of a pipeline differ in their calls, and ranks that take turns end at different times


@dataclass(slots=True)
class Recording:
    """Everything that passed between live ranks, kept to answer for ranks that do not run the next time."""

    posts: dict[str, dict[int, bytes]] = field(default_factory=dict)  # channel -> number -> message
    parts: dict[str, dict[int, dict[int, bytes]]] = field(default_factory=dict)  # group -> call -> rank -> its part
    keys: KeyRecording = field(default_factory=KeyRecording)

    def absorb(self, later: Recording) -> None:
        """Add what another run recorded."""
        for channel, posts in later.posts.items():
            self.posts.setdefault(channel, {}).update(posts)
        for channel, calls in later.parts.items():
            for number, parts in calls.items():
                self.parts.setdefault(channel, {}).setdefault(number, {}).update(parts)
        self.keys.absorb(later.keys)


@dataclass(slots=True)
class Waiting:
    """A request that cannot be answered yet."""

    rank: int
    verb: str  # get, collect or key
    channel: str
    number: int
    members: Sequence[int]  # ranks that have to do something first
    where: str
    main: bool  # asked by the rank's main thread, so the rank stands still
    reply: Reply
    position: int = -1  # in an all-to-all: of the asking member, which gets its share of every part


class Mailbox:
    """The shared state of one run. `together` are the ranks that run at once; recordings answer for the others."""

    def __init__(
        self,
        together: Iterable[int],
        recording: Recording | None = None,
        *,
        lone: bool = False,
        grows: bool = False,
        alike: Callable[[str], str | None] = lambda channel: None,
    ) -> None:
        self.together = set(together)
        self.recording = Recording()
        self._earlier = recording or Recording()
        self._lone = lone  # a rank that needs another gets the answer `needs`, and ends
        self._grows = grows  # a rank that another needs is started too
        self._alike = alike  # a recorded channel that may answer for one of which nothing was recorded
        self._running: set[int] = set()
        self._over: dict[int, str] = {}  # how a rank ended
        self._waiting: dict[_Key, list[Waiting]] = {}  # by what they wait for, so that one event looks at few of them
        self._needed: dict[tuple[str, int], int] = {}  # parts that complete a collective of a channel
        self._members: dict[tuple[str, int], frozenset[int]] = {}
        self._complete: tuple[tuple[str, int], tuple[list[bytes], list[int]]] | None = None  # the last one gathered
        self._keys = SharedKeys(self._earlier.keys)
        self.recording.keys = self._keys.recording
        self._most_calls = 0  # of a rank that was stopped

    # Start and end of ranks.

    def started(self, rank: int) -> None:
        """A rank was launched."""
        self._running.add(rank)
        self._over.pop(rank, None)

    def ended(self, rank: int, status: str, calls: int = 0) -> None:
        """A rank has ended after so many calls; requests that wait for it are answered."""
        if status == "done":
            self._most_calls = max(self._most_calls, calls)
        self._over.setdefault(rank, status)
        self._running.discard(rank)
        for key, waiting in list(self._waiting.items()):
            self._waiting[key] = [w for w in waiting if w.rank != rank]
            self._settle(key)

    @property
    def is_alone(self) -> bool:
        """Whether one rank runs without the others, and ends when it needs them."""
        return self._lone

    @property
    def num_running(self) -> int:
        """Ranks that have not ended."""
        return len(self._running)

    def count_running(self, ranks: Iterable[int]) -> int:
        """How many of these have not ended."""
        return len(self._running & set(ranks))

    def is_enough(self, calls: int) -> bool:
        """Whether a rank that ends no iteration has called more than those that were stopped after enough of them."""
        return "done" in self._over.values() and calls > _MORE_CALLS * self._most_calls

    def standing(self, *, any_thread: bool = False) -> set[int]:
        """Ranks whose main thread waits, or any of their threads."""
        return {waiting.rank for waiting in self._everyone() if waiting.main or any_thread}

    def wanted(self) -> list[int]:
        """Ranks that others wait for and that have not been started."""
        absent = self.together - self._running - set(self._over)
        if not absent:
            return []
        first = [waiting[0] for waiting in self._waiting.values() if waiting]
        return sorted({r for waiting in first for r in self._missing(waiting) if r in absent})

    # Requests.

    def post(self, channel: str, number: int, payload: bytes) -> Answer:
        """A message for one receiver, or a root's tensor."""
        self.recording.posts.setdefault(channel, {})[number] = payload
        self._settle(("get", channel, number))
        return "ok", None

    def get(self, waiting: Waiting, *, needed: bool = True) -> None:
        """The message of that number; a rank that does not run in this run is answered for."""
        owner = waiting.members[0]
        if owner not in self.together and needed and self._grows and self._recorded_post(waiting) is None:
            self.together.add(owner)
        if owner not in self.together:
            alone = self._lone and needed
            waiting.reply(("needs", owner) if alone else ("ok", self._recorded_post(waiting)))
            return
        self._wait(waiting)

    def give(self, rank: int, channel: str, number: int, payload: bytes) -> Answer:
        """A rank's part of a small collective."""
        self.recording.parts.setdefault(channel, {}).setdefault(number, {})[rank] = payload
        self._complete = None
        self._settle(("collect", channel, number))
        return "ok", None

    def collect(self, waiting: Waiting) -> None:
        """Every member's part of a small collective, once all that run together have given theirs."""
        self._wait(waiting)

    def use_store(self, rank: int, verb: str, values: Sequence[Any]) -> Answer:
        """A request to the store that never waits: set, add, compare, append, delete, check or count."""
        reply = getattr(self._keys, verb)(rank, *values)
        if verb in ("set", "add", "compare", "append"):
            self._settle(("key", values[0], 0))
        return "ok", reply

    def get_key(self, waiting: Waiting) -> None:
        """The value of a key, once it is written."""
        if self._lone and not self._keys.check(waiting.rank, [waiting.channel]):
            waiting.reply(("needs", -1))
            return
        self._wait(waiting)

    # End of waits.

    def find_deadlock(self) -> bool:
        """Whether no rank can go on: the caller makes sure that none is still to be started."""
        return bool(self._running) and self._running <= self.standing()

    def break_deadlock(self) -> None:
        """Answer every waiting rank with an error; waits for the store's keys end first, as if by their timeout."""
        stuck = list(self._everyone())
        at_keys = [waiting for waiting in stuck if waiting.verb == "key"]
        if at_keys:
            for waiting in at_keys:
                self._waiting.pop(_key_of(waiting), None)
            for waiting in at_keys:
                value = self._earlier.keys.values.get(waiting.channel)
                waiting.reply(("timeout", self._describe(waiting)) if value is None else ("ok", value))
            return
        others = self.describe_waits()
        self._waiting = {}
        for waiting in stuck:
            own = self._describe(waiting)
            waiting.reply(("error", own if len(stuck) == 1 else f"{own} ({others})"))

    def describe_waits(self) -> str:
        """The first few waiting ranks, where each waits and for whom."""
        return "; ".join(self._describe(waiting) for waiting in islice(self._everyone(), _MOST_NAMED))

    def _everyone(self) -> Iterator[Waiting]:
        return chain.from_iterable(self._waiting.values())

    def _wait(self, waiting: Waiting) -> None:
        answer = self._answer(waiting)
        if answer is None:
            self._waiting.setdefault(_key_of(waiting), []).append(waiting)
        else:
            waiting.reply(answer)

    def _settle(self, key: _Key) -> None:
        """Answer the requests for this that can be answered now."""
        waiting_here = self._waiting.get(key, ())
        # All that wait for one collective wait for the same parts: one look is enough for hundreds of them.
        if len(waiting_here) > 1 and key[0] == "collect" and self._answer(waiting_here[0]) is None:
            return
        left = []
        for waiting in self._waiting.pop(key, ()):
            answer = self._answer(waiting)
            if answer is None:
                left.append(waiting)
            else:
                waiting.reply(answer)
        if left:
            self._waiting[key] = left

    def _answer(self, waiting: Waiting) -> Answer | None:
        if waiting.verb == "key":
            value = self._keys.read(waiting.rank, waiting.channel, lambda r: r in self.together and r not in self._over)
            if value is not None:
                return "ok", value
        elif waiting.verb == "get":
            posted = self.recording.posts.get(waiting.channel, {})
            if waiting.number in posted:
                return "ok", posted[waiting.number]
        elif self._is_complete(waiting):
            return "ok", self._gathered(waiting) if waiting.position < 0 else self._shares_for(waiting)
        return self._give_up(waiting)

    def _is_complete(self, waiting: Waiting) -> bool:
        """Whether all members that run together gave their part; counted once per group, as it may have many."""
        key = (waiting.channel, len(self.together))
        if key not in self._needed:
            self._needed[key] = sum(rank in self.together for rank in waiting.members)
        return len(self.recording.parts.get(waiting.channel, {}).get(waiting.number, ())) >= self._needed[key]

    def _give_up(self, waiting: Waiting) -> Answer | None:
        """The answer to a request for a rank that has ended; None if all that it waits for still run."""
        gone = [r for r in self._over if self._is_missing(r, waiting)]
        if not gone:
            return None
        if any(self._over[r] == "done" for r in gone):
            return "over", None  # that rank was stopped after enough iterations, so this one is stopped too
        return "error", f"{self._describe(waiting)}, which has ended"

    def _is_missing(self, rank: int, waiting: Waiting) -> bool:
        if waiting.verb == "collect":
            given = self.recording.parts.get(waiting.channel, {}).get(waiting.number, {})
            return rank in self.together and rank not in given and rank in self._members_of(waiting)
        return rank in waiting.members

    def _members_of(self, waiting: Waiting) -> frozenset[int]:
        """The members of a group as a set, made once: it may have thousands."""
        key = (waiting.channel, len(waiting.members))
        if key not in self._members:
            self._members[key] = frozenset(waiting.members)
        return self._members[key]

    def _missing(self, waiting: Waiting) -> list[int]:
        if waiting.verb == "collect":
            given = self.recording.parts.get(waiting.channel, {}).get(waiting.number, {})
            return [r for r in waiting.members if r in self.together and r not in given]
        return list(waiting.members)

    def _gathered(self, waiting: Waiting) -> tuple[list[bytes], list[int]]:
        """Distinct parts, and which of them each member gave; -1 where nothing is known of a member."""
        call = (waiting.channel, waiting.number)
        if self._complete is not None and self._complete[0] == call:
            return self._complete[1]
        distinct: dict[bytes, int] = {}
        parts = self._parts_of(waiting)
        which = [-1 if part is None else distinct.setdefault(part, len(distinct)) for part in parts]
        self._complete = (call, (list(distinct), which))
        return self._complete[1]

    def _shares_for(self, waiting: Waiting) -> list[bytes | None]:
        """What each member sends to one position in an all-to-all; None where nothing is known of a member."""
        parts = self._parts_of(waiting)
        return [take_share(part, waiting.position, len(parts)) if part is not None else None for part in parts]

    def _parts_of(self, waiting: Waiting) -> list[bytes | None]:
        """Every member's part, of now or of an earlier run."""
        given = self.recording.parts.get(waiting.channel, {}).get(waiting.number, {})
        earlier = self._earlier.parts.get(waiting.channel, {})
        absent = earlier.get(waiting.number) or _most_like(given, earlier)
        return [given.get(rank, absent.get(rank)) for rank in waiting.members]

    def _recorded_post(self, waiting: Waiting) -> bytes | None:
        """The recorded message, or the last one of its channel, since iterations repeat."""
        posts = self._earlier.posts.get(waiting.channel) or self.recording.posts.get(waiting.channel)
        posts = posts or self._earlier.posts.get(self._alike(waiting.channel) or "")
        return posts.get(waiting.number, posts[max(posts)]) if posts else None

    def _describe(self, waiting: Waiting) -> str:
        if waiting.verb == "key":
            return f"rank {waiting.rank} waits at {waiting.where} for the store's key '{waiting.channel}'"
        missing = self._missing(waiting)
        return f"rank {waiting.rank} waits at {waiting.where} for {name_ranks(missing)}"


def _key_of(waiting: Waiting) -> _Key:
    return waiting.verb, waiting.channel, waiting.number


def _most_like(given: Mapping[int, bytes], earlier: Mapping[int, Mapping[int, bytes]]) -> Mapping[int, bytes]:
    """The last of the earlier calls whose messages begin most like those of now: a save has several calls."""

    def likeness(number: int) -> int:
        pairs = (zip(part[:_LIKENESS], earlier[number].get(rank, b""), strict=False) for rank, part in given.items())
        return max((sum(1 for _ in takewhile(lambda two: two[0] == two[1], pair)) for pair in pairs), default=0)

    return earlier[max(earlier, key=lambda number: (likeness(number), number))] if earlier else {}
