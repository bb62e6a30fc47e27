"""Run the host code of every rank, or of a sample, without measuring: to compare their calls and to find like ranks."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prism.emulate.alike import find_alike
from prism.emulate.booting import Boot
from prism.emulate.capture import Capture, cut_all
from prism.emulate.classes import Classes, find_classes
from prism.emulate.comparing import check_calls
from prism.emulate.families import find_families
from prism.emulate.inside.plan import RunPlan
from prism.emulate.launch import LaunchConfig, Launcher, RunLimits, check_ranks, read_memory
from prism.emulate.mailbox import Recording
from prism.emulate.memberships import choose_probes
from prism.emulate.ordering import check_order
from prism.emulate.problems import CallsDifferError, list_ranks, read_problem
from prism.emulate.stitch import StitchConfig, stitch
from prism.errors import GraphError, ScriptError
from prism.simulate.verification import verify

# What all ranks take was estimated from one; beside other programs the same work takes longer by the clock.
_MOST_OVER_ESTIMATE, _MOST_OVER_CLOCK = 2.5, 15
_SPARE_MEMORY = 0.6  # share of the free memory that ranks may take together
_ROUNDS = 6
# Waits are checked on the logs; an iteration cut out of them need not hold both ends of a message.
EAGER_BYTES = 1 << 50
_AUDITED = 8
_SMALL_WORLD, _LARGE_WORLD_STEPS = 32, 5  # iterations of many ranks are expensive, and few differ from the first ones
# More iterations where all ranks take no longer than this for them; starting many ranks takes longer anyway.
_MOST_STEPS, _CHEAP_S, _CHEAP_IN_LARGE_WORLD_S = 32, 6.0, 15.0
_PROBE_STEPS = 2
_CALLS_OF_A_CYCLE = 64
_GPU_PROBES = 6
_GPU_AT_ONCE = 8  # unmeasured ranks on one GPU, where its memory allows
_CONTEXT_BYTES = 1 << 30  # of CUDA and its libraries, per process
_BATCH = 8
_CALL_S = 0.0003  # what a call that ranks exchange values in costs, here and in the exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyConfig:
    """How many ranks to run unmeasured, and for how long."""

    most_ranks: int = 1024  # of the world; larger ones are surveyed by classes and a random sample
    budget_s: float = 60.0
    max_live: int = 64  # of a sample
    steps: int = 8
    note: Callable[[str], None] = lambda message: None
    first: Callable[[Capture], None] = lambda capture: None  # called with the first rank that was measured
    measure: bool = True  # a GPU that is idle is measured on at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the ranks that ran called."""

    captures: dict[int, Capture]
    recording: Recording = field(default_factory=Recording)
    complete: bool  # whether every rank ran
    measured: dict[int, Capture] = field(default_factory=dict)  # those that had the device to themselves


class Surveyor:
    """Runs ranks of a booted script unmeasured."""

    def __init__(self, boot: Boot, folder: Path, launch: LaunchConfig, base: RunPlan, config: SurveyConfig) -> None:
        self._boot = boot
        self._folder = folder
        self._launch = replace(launch, pin=False)
        self._base = replace(base, track_memory=False, snapshot="")
        self._config = config
        self._cores = len(os.sched_getaffinity(0))
        self._on_gpu = False
        self._at_once = 2 * self._cores
        self._measured: dict[int, Capture] = {}
        self._roots: set[int] = set()  # ranks that others need more of than was recorded
        self._sample_steps = _PROBE_STEPS
        self._alike: Callable[[str], str | None] = lambda channel: None
        self._batch = _BATCH  # ranks of a sample that run together, with those that they need
        self.started: set[int] = set()

    def run(self) -> Survey:
        """All ranks where that is affordable, else a sample that has every membership."""
        world, note = self._launch.world_size, self._config.note
        recording = Recording()
        probe = self._probe(recording)
        if world == 1:
            return Survey(captures={0: probe}, complete=True, measured=self._measured)
        self._on_gpu = probe.device != "cpu"
        if self._on_gpu:
            # A rank that could not go on alone has not shown how much memory it takes.
            self._at_once = count_at_once(probe) if probe.status == "done" else 1
        steps = self._affordable_steps(probe)
        if steps:
            note(f"running the host code of all {world} ranks for {steps} iterations")
            found = self._run_all(steps)
            if found is not None:
                return found
        note(f"running a sample of the {world} ranks")
        if not self._on_gpu:
            # Partners may change from step to step, so that cheap iterations are worth a look.
            cheap = int(_CHEAP_S * self._cores / (self._config.max_live * measure_step(probe)))
            self._sample_steps = max(_PROBE_STEPS, min(self._config.steps, cheap))
        # A rank that ran to its end alone needs no second run, unless the others run longer.
        reusable = probe.status == "done" and (self._on_gpu or self._sample_steps <= _PROBE_STEPS)
        sampled = self._sample({0: probe} if reusable else {}, recording)
        if self._all_fit(probe) and self._may_deadlock(sampled.captures):
            note(f"ranks may wait for each other in a cycle: running all {world} for {_CALLS_OF_A_CYCLE} calls")
            check_order(self._run(self._launch_all(1, most_calls=_CALLS_OF_A_CYCLE), range(world)))
        return sampled

    def _run(self, launcher: Launcher, ranks: Sequence[int]) -> dict[int, Capture]:
        try:
            return launcher.run(ranks)
        finally:
            self.started.update(launcher.started)

    def _probe(self, recording: Recording) -> Capture:
        """Rank 0 alone, as far as it gets: what a rank costs. A GPU is idle now, so there it is measured at once."""
        measure = self._config.measure and self._boot.has_gpu()
        base = self._base if measure else replace(self._base, steps=_PROBE_STEPS)
        plan = replace(base, live_ranks=(0,))
        launcher = Launcher(self._boot, self._launch, plan, self._folder, limits=RunLimits(lone=True))
        captures = self._run(launcher, [0])
        if self._launch.world_size == 1 or not captures or captures[0].status not in ("crashed", "hung"):
            check_ranks(launcher, captures)
        # A rank that fails alone may not fail among the others, which send it what it reads.
        probe = captures[0]
        if probe.status == "done":
            recording.absorb(launcher.recording)
            if measure:
                self._measured = {0: probe}
                self._config.first(probe)
        return probe

    def _affordable_steps(self, probe: Capture) -> int:
        """Iterations that all ranks can run in the time and memory there is; 0 where not even one."""
        config, world = self._config, self._launch.world_size
        if not self._all_fit(probe):
            return 0
        step_s = measure_step(probe)
        start_s = max(probe.cpu_s - step_s, 0.02)
        left_s = config.budget_s * self._cores - world * start_s
        all_ranks_s = world * step_s
        usual = config.steps if world <= _SMALL_WORLD else min(config.steps, _LARGE_WORLD_STEPS)
        # Data that end sooner on some ranks show only at the end of an epoch or of the script.
        cheap_s = _CHEAP_S if world <= _SMALL_WORLD else _CHEAP_IN_LARGE_WORLD_S
        cheap = min(_MOST_STEPS, int(cheap_s * self._cores / all_ranks_s))
        return min(max(usual, cheap), int(left_s / all_ranks_s))

    def _all_fit(self, probe: Capture) -> bool:
        """Whether this machine can hold all ranks at once."""
        world = self._launch.world_size
        if world > self._config.most_ranks or probe.device != "cpu":
            return False
        return probe.private_bytes * world <= _SPARE_MEMORY * _free_bytes()

    def _launch_all(self, steps: int, most_calls: int = 0) -> Launcher:
        everyone = tuple(range(self._launch.world_size))
        plan = replace(self._base, live_ranks=everyone, steps=steps, most_calls=most_calls, timed=False)
        budget = self._config.budget_s
        cpu_s = _MOST_OVER_ESTIMATE * budget * self._cores
        limits = RunLimits(at_once=2 * self._cores, cpu_s=cpu_s, budget_s=_MOST_OVER_CLOCK * budget)
        return Launcher(self._boot, self._launch, plan, self._folder, limits=limits)

    def _run_all(self, steps: int) -> Survey | None:
        launcher = self._launch_all(steps)
        captures = self._run(launcher, range(self._launch.world_size))
        if launcher.gave_up:
            return None
        if not any(c.status in ("crashed", "exited", "unsupported") for c in captures.values()):
            check_calls(captures)
            check_order(captures)
        check_ranks(launcher, captures)
        # Every rank ran, so whatever contradicts itself now would hang.
        self._verify(captures, launcher.recording)
        return Survey(captures=captures, recording=launcher.recording, complete=True)

    # Worlds that are too large to run whole.

    def _sample(self, captures: dict[int, Capture], recording: Recording) -> Survey:
        captures = captures or self.extend({}, recording, [0])
        world, per_node = self._launch.world_size, self._launch.gpus_per_node
        # A rank of a GPU job builds its whole model; the contradictions that are left name the ranks to add.
        self._on_gpu = captures[0].device != "cpu"
        most = _GPU_PROBES if self._on_gpu else self._config.max_live
        families = find_families(captures.values())
        if self._on_gpu:
            self._alike = find_alike(recording, families)
        captures = self.extend(captures, recording, choose_probes(families, world, per_node, list(captures), most))
        for _ in range(_ROUNDS):
            classes = classify(captures, world, per_node)
            missing = [r for r in classes.unproved if r not in captures]
            if not missing:
                break
            captures = self.extend(captures, recording, missing)
        unseen = sorted(set(range(world)) - set(captures))
        audit = random.Random(world).sample(unseen, min(2 if self._on_gpu else _AUDITED, len(unseen)))
        self._config.note(f"auditing {len(audit)} ranks drawn at random")
        captures = self.extend(captures, recording, audit)
        captures = self._verify(captures, recording)
        return Survey(captures=captures, recording=recording, complete=False, measured=self._measured)

    def _verify(self, captures: dict[int, Capture], recording: Recording) -> dict[int, Capture]:
        """Put the sample together; ranks that a contradiction names are run too, until there is none."""
        for _ in range(_ROUNDS):
            config = StitchConfig(warmup=1, gpus_per_node=self._launch.gpus_per_node, own_times=False)
            stitched = stitch(captures, config)
            try:
                verify(stitched.graph, eager_bytes=-1 if self._on_gpu else EAGER_BYTES)
                return captures
            except GraphError as error:
                missing = sorted(set(list_ranks(str(error))) - set(captures))
                if not missing:
                    raise CallsDifferError(read_problem(describe_calls(str(error)))) from None
                self._config.note(f"running rank {missing[0]} too: {error}")
                captures = self.extend(captures, recording, missing)
        raise ScriptError(
            f"the ranks of this program could not be sorted into classes by running {len(captures)} of them; name "
            "representatives with --ranks, or raise --lint-ranks to run all"
        )

    def _may_deadlock(self, captures: dict[int, Capture]) -> bool:
        """Whether ranks would wait for each other if those that did not run are like those that did.

        A suspicion only: of a message that crosses iterations, an iteration holds one end.
        """
        config = StitchConfig(warmup=1, gpus_per_node=self._launch.gpus_per_node, own_times=False)
        try:
            verify(stitch(captures, config).graph, eager_bytes=-1)
        except GraphError:
            return True
        return False

    def extend(self, captures: dict[int, Capture], recording: Recording, ranks: list[int]) -> dict[int, Capture]:
        """Run more ranks, and those that they need; earlier ones are answered for from the recording."""
        if not ranks:
            return captures
        if len(ranks) > self._batch:  # each may need others, and few may run at once
            before, last = ranks[: -self._batch], ranks[-self._batch :]
            captures = self.extend(captures, recording, before)
            return self.extend(captures, recording, [r for r in last if r not in captures])
        asked, ranks = ranks, sorted({*ranks, *self._roots})
        launcher = self._launcher(ranks, recording, recorded=bool(captures))
        found = self._run(launcher, ranks)
        if launcher.refused is not None and len(asked) > 1:
            self._batch = len(asked) // 2
            return self.extend(captures, recording, asked)
        roots = {rank for rank in launcher.started if rank in captures} - set(ranks)
        if roots:
            # What was recorded of these, who ran among others, does not fit what they say now: begin with them.
            self._roots |= roots
            return self.extend(captures, recording, ranks)
        if launcher.refused is not None:
            raise ScriptError(
                f"rank {launcher.refused} is needed too, which makes more than {self._config.max_live} live ranks; "
                "raise --max-live or name representatives with --ranks"
            )
        if self._on_gpu and self._at_once > 1 and any(c.status == "out_of_memory" for c in found.values()):
            self._at_once = 1  # some rank holds more than rank 0: one after the other
            return self.extend(captures, recording, ranks)
        if not any(c.status in ("crashed", "exited", "unsupported") for c in found.values()):
            check_calls({**captures, **found})
            if not self._on_gpu:
                check_order({**captures, **found})
        check_ranks(launcher, found)
        recording.absorb(launcher.recording)
        # Half of what may run is left for ranks that need more than these did.
        self._batch = max(1, min(self._batch, self._config.max_live * len(asked) // (2 * len(found))))
        return {**captures, **found}

    def _launcher(self, ranks: list[int], recording: Recording, *, recorded: bool) -> Launcher:
        steps = 1 if self._on_gpu else self._sample_steps
        plan = replace(self._base, live_ranks=tuple(ranks), steps=steps, recorded=recorded, timed=False)
        limits = RunLimits(at_once=self._at_once, most_live=self._config.max_live, alike=self._alike)
        return Launcher(self._boot, self._launch, plan, self._folder, recording=recording, limits=limits)


def describe_calls(deadlock: str) -> str:
    """A deadlock in the program's own calls: events between streams are the graph's."""
    parts = deadlock.removeprefix("deadlock: ").split("; ")
    calls = [part for part in parts if not re.fullmatch(r"rank \d+ stream \d+ waits for event \d+", part)]
    return "; ".join(calls) if any(" waits in " in part for part in calls) else deadlock


def measure_step(probe: Capture) -> float:
    """Seconds of processor time of a rank's second iteration, and of what its calls cost here."""
    ends = [i for i, entry in enumerate(probe.entries) if entry.what == "step"]
    second = probe.entries[ends[0] + 1 : ends[1] + 1] if len(ends) > 1 else ()
    return max(sum(entry.gap_ns for entry in second) / 1e9 + _CALL_S * len(second), 1e-4) if second else 0.05


def count_at_once(probe: Capture) -> int:
    """How many ranks fit on the GPU of this one together, if all hold about as much."""
    held = probe.memory.reserved + _CONTEXT_BYTES
    return max(1, min(_GPU_AT_ONCE, int(_SPARE_MEMORY * probe.device_bytes / held)))


def classify(captures: dict[int, Capture], world: int, per_node: int) -> Classes:
    """Classes by what surveyed ranks call from their second iteration on; the first holds start-up too."""
    streams = {r: [e for part in (parts[1:] or parts) for e in part] for r, parts in cut_all(captures).items()}
    return find_classes(streams, find_families(captures.values()), world, per_node)


def _free_bytes() -> int:
    return read_memory()[1]
