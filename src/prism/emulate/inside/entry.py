"""The first code of an emulated process: put Prism's groups in place, run the user's script, leave a log."""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch._dynamo import trace_rules  # every optimizer imports Dynamo, and forked ranks need not do so again
from torch.optim.optimizer import register_optimizer_step_post_hook

from prism.emulate.inside import forking
from prism.emulate.inside.event_log import log_events
from prism.emulate.inside.exchange import CaptureDone, ExchangeError, NeedsOthersError
from prism.emulate.inside.interception import intercept
from prism.emulate.inside.kept_files import FileKeeper, note_first_step
from prism.emulate.inside.memory import MemoryMeter, write_snapshot
from prism.emulate.inside.plan import RunPlan, load_plan
from prism.emulate.inside.recorder import find_place, follow_threads, write_log
from prism.emulate.inside.refusals import refuse_what_cannot_be_seen
from prism.emulate.inside.saving import plan_for_absent_ranks
from prism.emulate.inside.session import Session, UnsupportedError, open_session

_PRISM_FOLDER = str(Path(__file__).parents[1])
_MOST_REASON = 200
_COUNTED_STEPS = 2  # optimizers make their state in the first step, so the peak comes in the second


class StepCounter:
    """Counts iterations by the program's first optimizer."""

    def __init__(self, session: Session, meter: MemoryMeter) -> None:
        self._session = session
        self._meter = meter
        self._anchor: Any = None

    def after_step(self, optimizer: Any, *unused: Any) -> None:
        """Called by torch after every optimizer step."""
        if self._anchor is None:
            self._anchor = optimizer
        if optimizer is not self._anchor:
            return
        session, plan = self._session, self._session.plan
        session.step += 1
        entry = session.recorder.step()
        if session.step == 1 and plan.journal:
            note_first_step(session)
        if session.step == _COUNTED_STEPS:
            self._meter.stop_counting()
        if session.pacer is not None:
            session.pacer.start_step(session.step)
        if not self._goes_on(plan):
            raise CaptureDone
        # Prism's own doing, and the wait for the others, belong to no iteration.
        entry.end = session.clock.mark()

    def _goes_on(self, plan: RunPlan) -> bool:
        session = self._session
        if plan.steps:
            return session.step < plan.steps
        if session.exchange is None or session.pacer is not None:
            return session.step < plan.warmup + plan.iterations
        return session.exchange.meet(session.step, session.recorder.sign_step())


class RankProcess:
    """One process of an emulation: first the script without a rank, then, from the fork on, one rank."""

    def __init__(self, plan: RunPlan) -> None:
        self.started = time.perf_counter()
        self.session = open_session(plan)
        intercept(self.session)
        refuse_what_cannot_be_seen()
        follow_threads()
        plan_for_absent_ranks(self.session)
        FileKeeper(self.session, sys.argv[1])
        if torch.cuda.is_available():
            log_events(self.session)
        self.meter = MemoryMeter(track=plan.track_memory)
        self.session.note_scratch = self.meter.note_scratch
        register_optimizer_step_post_hook(StepCounter(self.session, self.meter).after_step)
        _note_backward(self.session)
        # C++ calls the groups while Dynamo watches; what they do is not for it to compile.
        trace_rules.add("prism.emulate.inside")

    def become(self, plan: RunPlan) -> None:
        """Take on a rank."""
        self.started = time.perf_counter()
        self.session.become(plan)
        os.environ.update(plan.environment(torch.cuda.device_count()))
        forking.set_rank_in_libraries(plan.rank)
        if not plan.track_memory or plan.steps:
            self.meter.stop_counting()
        if plan.snapshot and torch.cuda.is_available():
            torch.cuda.memory._record_memory_history()

    def finish(self, status: str, reason: str) -> NoReturn:
        """Leave the log and end."""
        session = self.session
        forking.report_end(status, reason)
        if os.getpid() != session.pid:
            # This is a process that the rank forked; the rank itself writes the log.
            if status != "ended":
                Path(f"{session.plan.output}.fork").write_text(reason)
            os._exit(0 if status == "ended" else 1)
        self.meter.stop_counting()
        _leave_log(session, self.meter, status, reason, time.perf_counter() - self.started)
        if session.exchange is not None:
            session.exchange.ask("bye", status, session.recorder.num_ops)
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of the program (data loaders, watchdogs) must not keep a finished rank alive.
        os._exit(0 if status in ("done", "ended") else 1)


def main() -> NoReturn:
    """Run one rank, or boot for many; the exit code is 0 if it ran to its end."""
    plan = load_plan()
    process = RankProcess(plan)
    if not forking.arm(process.become):
        process.become(plan)
    process.finish(*_run_script(sys.argv[1:]))


def _note_backward(session: Session) -> None:
    """Log where backward passes begin."""
    plain = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        session.recorder.note_backward()
        return plain(*args, **kwargs)

    torch.autograd.backward = backward


def _run_script(command: list[str]) -> tuple[str, str]:
    """Run the script as torchrun would; the status it ended with, and the reason."""
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            sys.path.insert(0, str(Path(command[0]).resolve().parent))
            runpy.run_path(command[0], run_name="__main__")
    except CaptureDone:
        return "done", ""
    except NeedsOthersError:
        return "needs", ""
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code and isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
        return ("ended", "") if not code else ("exited", f"exit code {code}")
    except (ExchangeError, UnsupportedError) as error:
        _show(error)
        return ("hung" if isinstance(error, ExchangeError) else "unsupported"), str(error)
    except BaseException as error:  # the user's own failure, whatever it is
        _show(error)
        full = _find_full_device(error)
        if full is not None:
            return "out_of_memory", _shorten(full)
        place = find_place(error)
        return "crashed", f"{type(error).__name__}: {_shorten(error)}" + (f" ({place})" if place else "")
    return "ended", ""


def _find_full_device(error: BaseException | None) -> BaseException | None:
    """The allocator's own error, which pipeline schedules and trainers raise again in their words."""
    while error is not None and not isinstance(error, torch.cuda.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error


def _shorten(error: BaseException) -> str:
    """The first sentence or so of a message, on one line; the whole of it was shown above."""
    text = " ".join(str(error).split())
    return text if len(text) <= _MOST_REASON else f"{text[:_MOST_REASON]} ..."


def _show(error: BaseException) -> None:
    """The user's own traceback, without the frames of the launcher."""
    frames = error.__traceback__
    while frames is not None and _is_launcher(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    shown = traceback.TracebackException(type(error), error, frames or error.__traceback__)
    if isinstance(error, ExchangeError | UnsupportedError):  # where the program called is enough: Prism is not at fault
        own = [frame for frame in shown.stack if not _is_launcher(frame.filename)]
        shown.stack = traceback.StackSummary.from_list(own)
    sys.stderr.write("".join(shown.format()))


def _is_launcher(name: str) -> bool:
    return name.startswith(_PRISM_FOLDER) or "runpy" in name


def _leave_log(session: Session, meter: MemoryMeter, status: str, reason: str, wall_s: float) -> None:
    plan, recorder = session.plan, session.recorder
    if torch.cuda.is_available() and status != "out_of_memory":
        torch.cuda.synchronize()
    if plan.snapshot:
        write_snapshot(Path(plan.snapshot))
    document = {
        "schema": "prism.capture/1",
        "rank": plan.rank,
        "world_size": plan.world_size,
        "status": status,
        "reason": reason,
        "wall_s": wall_s,
        "cpu_s": time.process_time(),
        # Asked of one rank, to know what all of them would take; the kernel walks all pages for the answer.
        "private_bytes": _private_bytes() if len(plan.live_ranks) == 1 else 0,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "device_bytes": torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else 0,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "memory": asdict(meter.read()),
        "groups": [asdict(group) for group in recorder.groups],
        "step_walls_ns": recorder.step_walls_ns,
        "diverged": session.pacer.diverged if session.pacer else 0,
        "entries": recorder.close() if status != "out_of_memory" else [],
        "unmet": recorder.close_unmet(),
    }
    write_log(Path(plan.output), document)


def _private_bytes() -> int:
    """Memory that this process wrote to. Pages of libraries that no other rank has read yet will be shared."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


if __name__ == "__main__":
    main()
