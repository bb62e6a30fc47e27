"""What-if changes as a user types them.

rank 12 speed 0.8                a rank computes at 0.8 of its speed; also: ranks 0-7, host 3
host 3 speed 0.5 from 2s to 5s   only for a while (ns, us, ms, s)
host 3 bandwidth 0.5             a host's network at half its speed; also: group dp-3
dp bandwidth 2                   links twice as wide for a slot, a kind of group or an op kind
attention ideal                  ops of this name or kind at the median duration of their name
overlap off                      one stream per rank
placement packed 8               ranks on hosts anew; also: placement strided 8
swap rank 3 rank 9               two ranks change places
dp degree 128                    more or fewer replicas
cluster dgx-b200                 the same job on another cluster
gpu B200                         compute as much shorter as the GPUs' peaks differ
uplinks load 0.4                 other jobs hold 0.4 of these links; also: leaf-3, host-2, leaf-0>spine-1
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

import polars as pl

from prism.errors import BadConfigError
from prism.simulate.graph import Graph, label_groups
from prism.simulate.solving.slowdowns import FOREVER, Slowdown
from prism.simulate.what_if.background import LinkLoad
from prism.simulate.what_if.changes import (
    Plan,
    change_bandwidth,
    change_degree,
    change_gpu,
    drop_overlap,
    known_words,
    load_links,
    make_ideal,
    move_to,
    place_ranks,
    slow_down,
    swap_ranks,
)

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_VERBS = ("speed", "bandwidth", "ideal", "degree", "load", "overlap", "placement", "swap", "cluster", "gpu")


def apply_change(plan: Plan, text: str) -> Plan:
    """The plan with one change made to it; a word it does not know is a BadConfigError with the nearest one."""
    words = text.split()
    match words:
        case ["overlap", "off"]:
            return drop_overlap(plan)
        case ["cluster", name]:
            return move_to(plan, name)
        case ["gpu", name]:
            return change_gpu(plan, name)
        case [("tp" | "pp" | "cp" | "ep") as degree, "degree", _]:
            raise BadConfigError(
                f"what-if '{text}': another {degree} degree changes what each rank computes, which a graph does not "
                "hold; ask `prism estimate --layout`, or emulate the program with it"
            )
        case ["microbatches", _]:
            raise BadConfigError(
                f"what-if '{text}': another number of micro-batches changes what each rank computes, which a graph "
                "does not hold; ask `prism estimate --global-batch`, or emulate the program with it"
            )
        case ["placement", order, count]:
            _expect(text, order, ("packed", "strided"))
            return place_ranks(plan, order, _whole(text, count))
        case ["swap", "rank", one, "rank", two]:
            return swap_ranks(plan, _whole(text, one), _whole(text, two))
        case [("rank" | "ranks" | "host") as what, which, "speed", speed, *window]:
            return slow_down(plan, _speeds(plan.graph, text, what, which, _number(text, speed), _window(text, window)))
        case [("host" | "group") as what, which, "bandwidth", factor, *window]:
            begin, end = _window(text, window)
            target = _group(plan.graph, text, which) if what == "group" else _whole(text, which)
            slow = Slowdown(target=what, id=target, speed=_number(text, factor), start_ns=begin, end_ns=end)
            return slow_down(plan, [slow])
        case [word, "bandwidth", factor]:
            _expect(text, word, known_words(plan.graph))
            return change_bandwidth(plan, word, _number(text, factor))
        case [where, "load", share]:
            return load_links(plan, [LinkLoad(where=where, load=_number(text, share))])
        case [slot, "degree", degree]:
            _expect(text, slot, plan.graph.groups["slot"].unique())
            return change_degree(plan, slot, _whole(text, degree))
        case [*name, "ideal"] if name:
            word = " ".join(name)
            timed = plan.graph.ops.filter(pl.col("duration_ns").is_not_null())
            _expect(text, word, [*timed["name"].unique(), *timed["kind"].cast(pl.String).unique()])
            return make_ideal(plan, word)
    verb = next((w for w in words[1:] if _nearest(w, _VERBS)), words[0] if words else "")
    hint = _nearest(verb, _VERBS)
    known = f"did you mean '{hint}'?" if hint and hint != verb else f"it can be one of {', '.join(_VERBS)}"
    raise BadConfigError(f"what-if '{text}': not understood; {known} ('rank 12 speed 0.8', 'dp bandwidth 2')")


def _speeds(graph: Graph, text: str, what: str, which: str, speed: float, window: tuple[int, int]) -> list[Slowdown]:
    if what == "host":
        host = _whole(text, which)
        ranks = graph.ranks.filter(pl.col("host") == host)["rank"].to_list()
        if not ranks:
            raise BadConfigError(f"what-if '{text}': no host {host}; the last one is {max(graph.ranks['host'])}")
    else:
        first, _, last = which.partition("-")
        ranks = list(range(_whole(text, first), _whole(text, last or first) + 1))
    return [Slowdown(target="rank", id=r, speed=speed, start_ns=window[0], end_ns=window[1]) for r in ranks]


def _window(text: str, words: list[str]) -> tuple[int, int]:
    match words:
        case []:
            return 0, FOREVER
        case ["from", begin]:
            return _time(text, begin), FOREVER
        case ["from", begin, "to", end]:
            return _time(text, begin), _time(text, end)
    raise BadConfigError(f"what-if '{text}': '{' '.join(words)}' is not a window; write 'from 2s to 5s'")


def _time(text: str, word: str) -> int:
    unit = next((u for u in ("ns", "us", "ms", "s") if word.endswith(u)), "")
    if not unit:
        raise BadConfigError(f"what-if '{text}': '{word}' has no unit; write it as 1500ms or 2s")
    return round(_number(text, word.removesuffix(unit)) * _UNITS[unit])


def _group(graph: Graph, text: str, label: str) -> int:
    labels = label_groups(graph)
    _expect(text, label, labels["label"])
    return int(labels.filter(pl.col("label") == label)["group"][0])


def _number(text: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadConfigError(f"what-if '{text}': '{word}' is not a number")
    return value


def _whole(text: str, word: str) -> int:
    if not (word.isascii() and word.isdigit()) or len(word) > 9:
        raise BadConfigError(f"what-if '{text}': '{word}' is not a whole number")
    return int(word)


def _expect(text: str, word: str, known: Iterable[str]) -> None:
    words = sorted(set(known))
    if word not in words:
        near = _nearest(word, words)
        hint = f"did you mean '{near}'?" if near else f"known are {', '.join(words[:12])}"
        raise BadConfigError(f"what-if '{text}': '{word}' is unknown; {hint}")


def _nearest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)
