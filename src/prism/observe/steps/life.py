"""State of a job: whether it runs, ended with a whole step, stopped in the middle of one, or pauses.

A job that ends has sent whole steps only. A job that stops has ranks that disagree about how far the step went, or
breaks off where steps never pause. If neither is visible, a silent job counts as ended, which blames nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.parallelism.message_streams import find_rows
from prism.observe.steps.beginnings import Beginning
from prism.observe.steps.gradient_overlap import size_up
from prism.observe.steps.spacing import find_step

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
State = Literal["running", "ended", "stopped", "paused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeConfig:
    """When a silence is significant, and what a whole step is."""

    silent_steps: float = levels.MIN_SAMPLES  # usual steps without a message before the observation ends
    regular: float = levels.SHARE_MAJORITY  # messages for each step that a stream needs to be counted
    missing: float = levels.SHARE_NEGLIGIBLE  # share of a step's messages that may be missing in a whole one
    templates: int = levels.MIN_STATISTICS  # steps before a silence that show what a step sends
    hiding: float = levels.SHARE_MINOR  # of a step: silences inside records that last longer are not seen
    odd_length: float = levels.SHARE_MINOR  # of a usual step by which one may differ
    odd_steps: float = levels.SHARE_SMALL  # share of the steps that may differ by more, where steps are cut right
    # Of a step's longest silence: a step may end in any silence that is usually as long.
    restful: float = levels.SHARE_HALF
    # Share of the streams, at least, that have sent more or less than others like them.
    disagreeing: float = levels.SHARE_SMALL
    deviations: float = levels.SIGMAS_UNLIKELY  # by which ranks must disagree more than lost records make them
    wandering: float = levels.SHARE_SMALL  # share of streams and steps with more messages than is usual
    gone: float = levels.SHARE_MINOR  # share of the observation without a message, where steps are not seen
    as_before: float = levels.RATIO_LONGER  # times the longest earlier pause: a silence that is no longer is a pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What a job does when the observation ends; when it was first seen, and last seen if it is over."""

    state: State = "running"
    started_ns: int = 0
    ended_ns: int | None = None
    beginning: Beginning | None = None  # of a step that only some of the hosts of a job that stopped began


@dataclass(frozen=True, kw_only=True)
class StepTemplate:
    """The messages of regular streams in order of start, and what a usual step sends of each stream."""

    start: Ints
    end: Ints
    row: Ints  # the stream of each message
    alike: Ints  # by stream a number that streams of one kind, size and rate share
    usual: Ints  # by stream the messages of a step
    longest_ns: float  # that messages of a stream usually last
    pair: Ints  # by stream the pair that sends it
    differing: float  # share of streams and steps with another number: lost records, uncertain boundaries
    wanders: bool  # whether boundaries are uncertain: some steps have too many messages, not only too few
    slack: float  # messages by which whole steps differ
    begin: Ints  # of steps
    until: Ints
    load: pl.DataFrame  # start_ns pair bytes of all messages, those that come seldom too
    bursts: bool = False  # whether each message is all that a connection sends in a step

    def count_since(self, begin_ns: int, until_ns: int) -> Ints:
        """Messages of each stream that start in a stretch of time."""
        first, last = np.searchsorted(self.start, [begin_ns, until_ns + 1])
        return np.bincount(self.row[first:last], minlength=len(self.usual))


def are_steps_regular(messages: pl.DataFrame, streams: pl.DataFrame, steps: pl.DataFrame, config: LifeConfig) -> bool:
    """Whether streams send in most steps and step boundaries are certain: what a template would tell."""
    if not steps.height or messages.is_empty():
        return False
    regular = _list_regular(streams, steps, config)
    row = find_rows(regular, messages["stream"])
    if not (row >= 0).any():
        return False
    counts = _count_in_steps(messages["start_ns"].to_numpy(), row, steps, regular.height, config)
    return not _do_boundaries_wander(counts, np.median(counts, axis=0).round().astype(np.int64), config)


def _list_regular(streams: pl.DataFrame, steps: pl.DataFrame, config: LifeConfig) -> pl.DataFrame:
    """The streams that send in most steps."""
    return streams.filter((pl.col("num") >= config.regular * steps.height) & ~pl.col("cut"))


def _count_in_steps(start: Ints, row: Ints, steps: pl.DataFrame, num_rows: int, config: LifeConfig) -> Ints:
    """By step and stream the messages that start in it, of the last whole steps; `row` is -1 for other streams."""
    last = steps[max(0, steps.height - 1 - 4 * config.templates) : max(1, steps.height - 1)]
    step = find_step(start, last)
    cell = (step * np.int64(num_rows) + row)[(step >= 0) & (row >= 0)]
    return np.bincount(cell, minlength=last.height * num_rows).reshape(last.height, num_rows)


def make_template(
    messages: pl.DataFrame, streams: pl.DataFrame, steps: pl.DataFrame, config: LifeConfig, *, bursts: bool = False
) -> StepTemplate | None:
    """What usual steps send; None where no stream sends in most steps."""
    if not steps.height or messages.is_empty():
        return None
    regular = _list_regular(streams, steps, config)
    row = find_rows(regular, messages["stream"])
    own = np.flatnonzero(row >= 0)
    start = messages["start_ns"].to_numpy()
    own = own[np.argsort(start[own], kind="stable")]
    if not len(own):
        return None
    start, end, row = start[own], messages["end_ns"].to_numpy()[own], row[own]
    begin, until = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    counts = _count_in_steps(start, row, steps, regular.height, config)
    wanders = _do_boundaries_wander(counts, np.median(counts, axis=0).round().astype(np.int64), config)
    # A barrier or a last norm sends a few numbers more after the last step: only tensors show how far a step went.
    tensors = np.flatnonzero(regular["bytes"].to_numpy() >= levels.SMALL_MESSAGE_BYTES)
    if len(tensors):
        number = np.full(regular.height, -1, np.int64)
        number[tensors] = np.arange(len(tensors))
        kept = number[row] >= 0
        start, end, row = start[kept], end[kept], number[row[kept]]
        counts, regular = counts[:, tensors], regular[tensors]
    usual = np.median(counts, axis=0).round().astype(np.int64)
    deviation = float(np.median(np.abs(counts.sum(axis=1) - usual.sum())))
    keys = np.stack([size_up(regular["bytes"].to_numpy()), usual, regular["kind"].rank("dense").to_numpy()], axis=1)
    return StepTemplate(
        start=start,
        end=end,
        row=row,
        alike=np.unique(keys, axis=0, return_inverse=True)[1].ravel(),
        usual=usual,
        longest_ns=float(regular["duration_ns"].max() or 0.0),  # type: ignore[arg-type]
        pair=np.unique(regular["pair"].to_numpy(), return_inverse=True)[1],
        differing=float((counts != usual).mean()),
        wanders=wanders,
        slack=min(config.missing * float(usual.sum()), levels.SIGMAS_CERTAIN * max(1.4826 * deviation, 1.0)),
        begin=begin,
        until=until,
        load=messages.select("start_ns", "pair", "bytes"),
        bursts=bursts,
    )


def _do_boundaries_wander(counts: Ints, usual: Ints, config: LifeConfig) -> bool:
    """Whether messages are now in one step and now in the next, by the counts of steps and streams.

    Streams send more than usual in some steps, which lost records cannot cause, and these are so many that steps differ
    on average by more than whole ones do: a few messages at the boundary may come before it or after it.
    """
    if not usual.any():
        return False
    total = np.sort(counts.sum(axis=1))[min(1, len(counts) - 1) :]  # a step that broke off has fewest
    apart = np.abs(total - np.median(total)).mean() > config.missing * np.median(total)
    return bool(apart and (counts > usual)[:, usual > 0].mean() > config.wandering)


def rests_whole(template: StepTemplate, at_ns: int, *, config: LifeConfig) -> bool:
    """Whether the job had sent whole steps only when it fell silent at a moment; also true where this is unknown."""
    usual = float(np.median(template.until - template.begin))
    step = int(np.searchsorted(template.begin, at_ns, side="right")) - 1
    total = float(template.usual.sum())
    if step < 0 or total <= 0:
        return True
    begin_ns = int(template.begin[step] if at_ns <= template.until[step] else template.until[step])
    sent = template.count_since(begin_ns, at_ns)
    if not sent.any():  # It fell silent where a step was cut: that step may be the one that broke off.
        sent = template.count_since(int(template.begin[step]), at_ns)
    if counts_bytes(template):
        # A burst may have been cut in two where the machine paused, and one that broke off counts as a message.
        return _sent_whole_steps(template, at_ns) or not _breaks_off_bursts(template, begin_ns, at_ns, config)
    whole_steps = int(sent.sum() / total + config.missing)
    sent = sent - whole_steps * template.usual
    if abs(sent.sum()) <= template.slack:
        return True
    if template.wanders or _sent_whole_steps(template, at_ns):
        return True
    if _ranks_disagree(template, sent, step, config):
        return False
    # A record that lasts for a large part of a step may hide the silence at the end of the step, and if every few
    # steps are longer, the interval may be a part of a step.
    lengths = np.delete((template.until - template.begin) / usual, step)
    odd = bool((np.abs(lengths - 1) > config.odd_length).sum() > config.odd_steps * len(lengths))
    hidden = template.longest_ns > config.hiding * usual
    return odd or hidden or _may_end_at(template, int(sent.sum()), step, config)


def _sent_whole_steps(template: StepTemplate, at_ns: int) -> bool:
    """Whether nearly every pair has sent the same whole number of steps since the job began, wherever steps are cut.

    What came before a silence does not count: the job may have been started again. Nor need what came before the first
    boundary after it: parameters may be sent once. A pair's messages are counted together, for messages of nearly one
    size may be in either of two streams.
    """
    start = template.start[: np.searchsorted(template.start, at_ns, side="right")]
    silent = start[1:] - np.maximum.accumulate(template.end[: len(start)])[:-1]
    long = np.flatnonzero(silent > np.median(template.until - template.begin))
    since = int(template.start[long[-1] + 1 if len(long) else 0])
    usual = np.bincount(template.pair, template.usual).astype(np.float64)
    sent = np.bincount(template.pair, template.count_since(since, at_ns))
    bounds = [since, *template.begin[template.begin > since][:1].tolist()]
    counted = not template.bursts and _are_whole(sent, usual, 0.0)
    return counted or any(_sent_whole_loads(template, bound, at_ns) for bound in bounds)


def counts_bytes(template: StepTemplate) -> bool:
    """Whether bytes show better than messages how far a step went: of bursts, or over TCP where boundaries wander.

    Over TCP many records are acknowledgements, and others hold any part of a message.
    """
    size = template.load["bytes"]
    acknowledged = (size < levels.SMALL_MESSAGE_BYTES).sum() > levels.SHARE_MINOR * len(size)
    return template.bursts or (template.wanders and acknowledged)


def _sent_whole_loads(template: StepTemplate, since_ns: int, at_ns: int) -> bool:
    """The same of bytes: an idle timeout may merge messages into records of any size."""
    return _are_whole(*_sum_loads(template, since_ns, at_ns), levels.THREE_PER_MILLE)


def _sum_loads(template: StepTemplate, since_ns: int, at_ns: int) -> tuple[Floats, Floats]:
    """The bytes of each pair in a stretch of time, and in a usual step."""
    start, pair, size = (template.load[c].to_numpy() for c in ("start_ns", "pair", "bytes"))
    pairs, pair = np.unique(pair, return_inverse=True)
    num_pairs, num_steps = len(pairs), len(template.begin)
    step = np.searchsorted(np.append(template.begin, template.until[-1]), start, side="right") - 1
    inside = (step >= 0) & (step < num_steps)
    by_step = np.bincount(step[inside] * num_pairs + pair[inside], size[inside], num_steps * num_pairs)
    own = (start >= since_ns) & (start <= at_ns)
    sent = np.bincount(pair[own], size[own], num_pairs).astype(np.float64)
    return sent, np.median(by_step.reshape(num_steps, num_pairs), axis=0)


def _breaks_off_bursts(template: StepTemplate, since_ns: int, at_ns: int, config: LifeConfig) -> bool:
    """Whether pairs have sent parts of a burst, and not all of those that usually send equally much the same part.

    What a job gathers at its end takes all hops of a collective alike. One part alone may be one of such traffic.
    """
    sent, usual = _sum_loads(template, since_ns, at_ns)
    order = np.argsort(usual)
    share, usual = sent[order] / np.maximum(usual[order], 1.0), usual[order]
    share -= np.floor(share + config.missing)  # Whole bursts.
    parts = share > config.missing
    alike = np.cumsum(np.diff(usual, prepend=usual[:1]) > levels.THREE_PER_MILLE * usual)
    apart = [float(np.ptp(share[alike == number])) for number in np.unique(alike[parts])]
    return bool(parts.sum() >= levels.MIN_TWO and max(apart) > config.missing)


def _are_whole(sent: NDArray[Any], usual: Floats, slack: float) -> bool:
    """Whether nearly every pair sent the same whole number of usual steps, but for a share of one."""
    sent, usual = sent[usual > 0], usual[usual > 0]
    if not len(usual):
        return False
    steps = round(float(np.median(sent / usual)))
    whole = np.abs(sent - steps * usual) <= slack * usual
    return steps > 0 and float(np.mean(whole)) >= levels.SHARE_NEARLY_ALL


def breaks_off(template: StepTemplate, at_ns: int) -> bool:
    """Whether the traffic between the boundaries before and after a silence is not a whole number of steps.

    After a pause a job sends the rest of its step; a restarted job begins a new one.
    """
    after = int(np.searchsorted(template.begin, at_ns, side="right"))
    total = float(template.usual.sum())
    if not 0 < after < len(template.begin) or total <= 0:
        return False
    if template.wanders or _sent_whole_steps(template, at_ns):
        return False
    sent = float(template.count_since(int(template.begin[after - 1]), int(template.begin[after]) - 1).sum())
    return abs(sent - round(sent / total) * total) > template.slack


def _ranks_disagree(template: StepTemplate, sent: Ints, step: int, config: LifeConfig) -> bool:
    """Whether similar streams have sent different amounts, by more than lost records explain.

    Few stages pass messages on in a job that sums gradients many times: of those that do the same some have then sent
    what they never did when the job had sent as much in all.
    """
    kinds = [np.flatnonzero(template.alike == number) for number in range(int(template.alike.max()) + 1)]
    middle = np.zeros(len(sent))
    for own in kinds:
        middle[own] = np.median(sent[own])
    if _is_unlikely(sent != middle, template.differing, config):
        return True
    usual = _count_at(template, int(sent.sum()), step, config)
    if not len(usual):
        return False
    never = (sent != middle) & ((sent < usual.min(axis=0)) | (sent > usual.max(axis=0)))
    return any(_is_unlikely(never[own], template.differing, config) for own in kinds)


def _is_unlikely(differs: NDArray[np.bool_], chance: float, config: LifeConfig) -> bool:
    """Whether more streams differ than by chance."""
    num = len(differs)
    limit = chance + config.deviations * np.sqrt(max(chance * (1 - chance), 1 / num) / num)
    return bool(np.mean(differs) > max(limit, config.disagreeing))


def _count_at(template: StepTemplate, place: int, step: int, config: LifeConfig) -> Ints:
    """By step before one and by stream the messages that were sent when the step had sent as many in all."""
    found = []
    for i in range(max(0, step - config.templates), step):
        first, last = np.searchsorted(template.start, [template.begin[i], template.until[i]])
        if 0 < place < last - first:  # A whole step that lacks a few messages has no such place.
            found.append(np.bincount(template.row[first : first + place], minlength=len(template.usual)))
    return np.array(found)


def _may_end_at(template: StepTemplate, place: int, step: int, config: LifeConfig) -> bool:
    """Whether usual steps pause after this many messages for nearly as long as they ever do."""
    after, longest = [], []
    for i in range(max(0, step - config.templates), step):
        first, last = np.searchsorted(template.start, [template.begin[i], template.until[i]])
        if last - first <= place or last >= len(template.start):
            continue
        reach = np.maximum.accumulate(template.end[first:last])
        rests = template.start[first + 1 : last + 1] - reach
        after.append(rests[place - 1])
        longest.append(rests.max())
    return not after or float(np.median(after)) >= config.restful * float(np.median(longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """When a whole observation begins and ends, and until when the job wrote to storage."""

    begin_ns: int
    until_ns: int
    saved_ns: int = 0
    bursts: bool = False  # whether messages are bursts


def judge_life(
    messages: pl.DataFrame,
    streams: pl.DataFrame,
    steps: pl.DataFrame,
    watched: Watched,
    config: LifeConfig | None = None,
) -> Life:
    """The life of one job; `messages` are all of its pairs', `streams` say how often each is sent."""
    config = config or LifeConfig()
    if messages.is_empty():
        return Life()
    first, last = int(messages["start_ns"].min()), int(messages["end_ns"].max())  # type: ignore[arg-type]
    running = Life(started_ns=first)
    if not steps.height:
        # How it ended is unknown without steps, but a long silence is visible.
        over = watched.until_ns - last > config.gone * (watched.until_ns - watched.begin_ns)
        return Life(state="ended", started_ns=first, ended_ns=last) if over else running
    usual = float((steps["end_ns"] - steps["start_ns"]).median())  # type: ignore[arg-type]
    silent = watched.until_ns - last
    if silent < config.silent_steps * usual:
        return running
    if max(watched.saved_ns - last, 0) > 0.5 * silent or silent <= config.as_before * _longest_pause(messages, usual):
        return Life(state="paused", started_ns=first)
    template = make_template(messages, streams, steps, config, bursts=watched.bursts)
    whole = template is None or rests_whole(template, last, config=config)
    return Life(state="ended" if whole else "stopped", started_ns=first, ended_ns=last)


def _longest_pause(messages: pl.DataFrame, usual: float) -> float:
    """The longest silence between messages of the job, where it is longer than a step."""
    ordered = messages.select("start_ns", "end_ns").sort("start_ns")
    gaps = ordered["start_ns"].to_numpy()[1:] - np.maximum.accumulate(ordered["end_ns"].to_numpy())[:-1]
    longest = float(gaps.max(initial=0))
    return longest if longest > usual else 0.0
