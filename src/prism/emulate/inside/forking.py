"""Boot once: the script runs up to where it first asks which rank it is, and every rank is forked from there.

What runs before that point cannot depend on the rank, so imports, and often the model, are shared by all ranks.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from prism.emulate.inside.plan import RunPlan

RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"})
CONTROL_VARIABLE = "PRISM_EMULATE_CONTROL"
_EARLY_READERS = frozenset(
    {"torchmetrics", "lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning"}
)
_PR_SET_PDEATHSIG = 1
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
_LIBRARY_FOLDERS = tuple({str(Path(os.__file__).parent), str(Path(torch.__file__).parents[1])})

Become = Callable[[RunPlan], None]


class _WatchedEnvironment(os._Environ):  # type: ignore[type-arg]
    """os.environ until the fork: a look at the rank's variables is the point to fork at."""

    def __getitem__(self, key: Any) -> Any:
        if key in RANK_VARIABLES:
            if _is_early_reader(sys._getframe(1)):
                raise KeyError(key)
            _Point.reach()
        return os._Environ.__getitem__(self, key)  # reaching the point changes the class, so no super()

    def __iter__(self) -> Any:
        if not _is_in_library(sys._getframe(1)):
            _Point.reach()
        return os._Environ.__iter__(self)


def _is_early_reader(frame: FrameType | None) -> bool:
    """These read the rank when they are imported, to print on rank 0 only; after the fork it is corrected."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _EARLY_READERS
        frame = frame.f_back
    return False


def set_rank_in_libraries(rank: int) -> None:
    """Correct the libraries that were imported before the rank was known."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _EARLY_READERS:
            printer = vars(module).get("rank_zero_only")
            if hasattr(printer, "rank"):
                printer.rank = rank  # type: ignore[union-attr]


def _is_in_library(frame: FrameType | None) -> bool:
    """Libraries copy the environment to start processes; only the script's own copy would be searched for a rank."""
    while frame is not None and "_collections_abc" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename.startswith((*_LIBRARY_FOLDERS, "<"))


class _Point:
    """Where the process forks; there is one per process."""

    control: Connection | None = None
    become: Become

    @classmethod
    def reach(cls) -> None:
        """Serve forks here; returns in every child, never in the parent."""
        control, cls.control = cls.control, None
        if control is None:
            return
        os.environ.__class__ = os._Environ
        reason = _why_not()
        if reason:
            control.send(("cannot", reason))
            os._exit(0)
        plan = _serve(control)
        cls.become(plan)


def arm(become: Become) -> bool:
    """Fork at the first look at the rank, where a launcher controls this process; `become` makes a child a rank."""
    descriptor = os.environ.pop(CONTROL_VARIABLE, None)
    if descriptor is None:
        return False
    _Point.control, _Point.become = Connection(int(descriptor)), become
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    os.environ.__class__ = _WatchedEnvironment
    _fork_before_cuda()
    return True


def report_end(status: str, reason: str) -> None:
    """The script ended before it asked for its rank."""
    if _Point.control is not None:
        _Point.control.send(("ended early", status, reason))
        os._exit(0)


def _fork_before_cuda() -> None:
    plain = torch.cuda._lazy_init

    def lazy_init() -> Any:
        _Point.reach()
        return plain()  # type: ignore[no-untyped-call]

    torch.cuda._lazy_init = lazy_init


def _why_not() -> str:
    others = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    if others:
        return f"the script started threads before it asked for its rank ({', '.join(others[:3])})"
    if torch.cuda.is_available() and _driver_is_in_use():
        return "CUDA is in use before the script asked for its rank"
    return ""


def _driver_is_in_use() -> bool:
    """CUDA's driver does not survive a fork once it was initialised, by any library."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return torch.cuda.is_initialized()  # type: ignore[no-untyped-call,no-any-return]
    return bool(driver.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())) != _NOT_INITIALIZED)


def _serve(control: Connection) -> RunPlan:
    """Fork a child for every plan that comes in; the parent ends here."""
    children: set[int] = set()
    folders = [found for found in gc.get_objects() if isinstance(found, tempfile.TemporaryDirectory)]
    # A collection in a child would write to every object, and so make a copy of all memory that is shared.
    gc.collect()
    gc.freeze()
    # Asked through NVML, which does not start CUDA.
    control.send(("ready", torch.cuda.is_available()))
    while True:
        try:
            order = control.recv() if control.poll(0.02) else None
        except (EOFError, OSError):
            order = ("end",)  # the launcher is gone
        if order is not None and order[0] == "end":
            for folder in folders:
                folder.cleanup()
            os._exit(0)  # children end with this process
        elif order is not None and order[0] == "kill":
            # Only this process knows for sure that the number is still its child's.
            if order[1] in children:
                os.kill(order[1], signal.SIGKILL)
        elif order is not None:
            _, path, log = order
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                _settle_in(control, log)
                _leave_to_others(folders)
                return RunPlan.from_json(Path(path).read_text())
            children.add(pid)
            control.send(("pid", pid))
        _reap(children, control)


def _reap(children: set[int], control: Connection) -> None:
    """Report the children that ended; one question for all of them, since there may be hundreds."""
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in children:
            children.discard(pid)
            control.send(("ended", pid, os.waitstatus_to_exitcode(status)))


def _settle_in(control: Connection, log: str) -> None:
    """A child writes to its own log and ends when its parent does."""
    control.close()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _leave_to_others(folders: Sequence[tempfile.TemporaryDirectory[Any]]) -> None:
    """A rank that ends must not delete what was made before the fork: other ranks still read it."""
    for folder in folders:
        folder._finalizer.detach()  # type: ignore[attr-defined]
        folder.cleanup = lambda: None  # type: ignore[method-assign]
