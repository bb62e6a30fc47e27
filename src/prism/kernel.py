"""Kernels: functions that numba compiles once they are worth it, and that Python runs until then.

To compile a kernel takes about a second, to load what was compiled before some hundredths, and to import numba half a
second. A small capture uses dozens of kernels, where Python needs milliseconds for each. So a kernel runs as it is
written while what Python has spent on it, and is about to spend, is less than that.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

_COMPILE_S = 0.6  # that Python spends on a kernel before it is compiled
_IMPORT_S = 0.5  # the same on all kernels before numba is imported
_ELEMENT_S = 2e-5  # that Python may take for an element: some kernels look at it many times

Function = TypeVar("Function", bound=Callable[..., Any])


class Kernel:
    """A function that knows what Python has spent on it; numba takes it for a compiled one wherever it is called."""

    spent_on_all_s = 0.0

    def __init__(self, function: Callable[..., Any], *, always: bool = False, **options: bool) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._always = always
        self._options = {"cache": True, "nogil": True, **options}
        self._spent_s = 0.0
        self._compiled: Any = None

    @property
    def compiled(self) -> Any:
        """The function as numba compiles it, for the types that it is called with."""
        if self._compiled is None:
            import numba

            self._compiled = numba.njit(**self._options)(self.py_func)
        return self._compiled

    @property
    def _numba_type_(self) -> Any:
        """Its type within other kernels."""
        return self.compiled._numba_type_

    def __reduce__(self) -> str:
        return self.py_func.__qualname__

    def __call__(self, *args: Any) -> Any:
        """Run compiled, or in Python while that is cheaper."""
        if self._always or (self._compiled is not None and getattr(self._compiled, "overloads", True)):
            return self.compiled(*args)  # NUMBA_DISABLE_JIT gives the function itself, which has no overloads
        size = sum(a.size for a in args if isinstance(a, np.ndarray))
        if self._is_worth_it(_ELEMENT_S * size):
            return self.compiled(*args)
        begin = time.thread_time()
        with np.errstate(all="ignore"):
            answer = self.py_func(*map(_widen, args))
        spent = time.thread_time() - begin
        self._spent_s += spent
        Kernel.spent_on_all_s += spent
        return answer

    def _is_worth_it(self, next_s: float) -> bool:
        """Whether to run compiled from now on; what is on disk is, once numba is there to load it."""
        if "numba" not in sys.modules and Kernel.spent_on_all_s + next_s < _IMPORT_S:
            return False
        return self._spent_s + next_s > _COMPILE_S or _is_on_disk(self.compiled)


def _widen(value: Any) -> Any:
    """Whole numbers as numba computes with them: those of numpy's narrow types would wrap around."""
    narrow = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iu" and value.dtype != np.int64
    return value.astype(np.int64) if narrow else value


def _is_on_disk(dispatcher: Any) -> bool:
    try:
        return bool(dispatcher._cache._cache_file._load_index())
    except (AttributeError, OSError):
        return False


def kernel(function: Function) -> Function:
    """Make a kernel of a function of arrays and numbers; it releases the interpreter's lock once compiled."""
    return cast(Function, Kernel(function))


def njit(**options: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As numba's, for functions that Python cannot run as they are; numba is imported when one is called."""
    return lambda function: Kernel(function, always=True, **options)
