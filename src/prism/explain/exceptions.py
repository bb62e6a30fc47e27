"""Recognise exception lines, and say which of the reasons an exception's class stands for."""

from __future__ import annotations

import builtins
import re
from functools import cache

from prism.records.verdict import CATEGORY_OF_REASON

# Classes of libraries whose name alone does not lead to a reason, or leads to the wrong one.
_KNOWN: dict[str, str] = {
    "ModuleNotFoundError": "ImportError", "UnboundLocalError": "NameError", "JSONDecodeError": "ValueError",
    "ValidationError": "ValueError", "OutOfMemoryError": "OutOfMemoryError", "MemoryError": "OutOfMemoryError",
    "AcceleratorError": "CUDAError", "CudaError": "CUDAError", "ClientError": "S3StorageError",
    "timeout": "ConnectionError", "TimeoutError": "ConnectionError", "TimeoutExpired": "CalledProcessError",
    "gaierror": "ConnectionError", "URLError": "ConnectionError", "HTTPError": "ConnectionError",
    "error": "OSError", "EOFError": "ModelLoadingError", "UnpicklingError": "ModelLoadingError",
    "PicklingError": "TypeError", "InstantiationException": "TypeError", "ConfigAttributeError": "AttributeError",
    "ConfigKeyError": "KeyError", "InterpolationKeyError": "KeyError", "MissingMandatoryValue": "ValueError",
    "UndefinedColumn": "KeyError", "ParserError": "DatasetLoadingError", "StopIteration": "RuntimeError",
    "OverflowError": "ValueError", "FloatingPointError": "RuntimeError", "ArithmeticError": "ValueError",
    "LookupError": "KeyError", "BufferError": "RuntimeError", "SystemError": "RuntimeError",
    "Exception": "RuntimeError",
    "BadZipFile": "ModelLoadingError", "UnidentifiedImageError": "DatasetLoadingError", "AxisError": "IndexError",
    "AmbiguousOptionError": "ArgumentError", "BadParameter": "ArgumentError", "ExceptionGroup": "RuntimeError",
    "OSErrorGroup": "OSError", "DistBackendError": "RuntimeError", "DistError": "RuntimeError",
    "LinAlgError": "RuntimeError", "HFValidationError": "ValueError", "CompilationError": "RuntimeError",
    "UsageError": "RuntimeError", "TemplateError": "ValueError", "UndefinedError": "ValueError",
    "MissingConfigException": "FileNotFoundError",
}  # fmt: skip
# What else a class name may tell, in order.
_PARTS = (("timeout", "ConnectionError"), ("connect", "ConnectionError"), ("notfound", "FileNotFoundError"),
          ("permission", "PermissionError"), ("argument", "ArgumentError"), ("option", "ArgumentError"),
          ("validation", "ValueError"), ("config", "ValueError"), ("checkpoint", "ModelLoadingError"),
          ("dataset", "DatasetLoadingError"), ("import", "ImportError"), ("parse", "SyntaxError"))  # fmt: skip
# Classes that only pass on what another one said.
PASSED_ON = frozenset({"ChildFailedError", "RayTaskError", "RemoteError", "ProcessRaisedException",
                       "TrainingFailedError",
                       "DatasetGenerationError", "Empty", "KeyboardInterrupt", "SystemExit", "SignalException",
                       "GeneratorExit", "CancelledError", "BrokenProcessPool", "Warning"})  # fmt: skip
_NAME = (
    r"(?:[A-Za-z_][\w]*\.)*([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Empty|Expired|Warning|NotFound|Failure|Invalid|Timeout)"
    r"|BadZipFile|StopIteration|Exception|timeout|error)"
)
# At the start of a line, as Python prints it; `error`, `timeout` only with a module before them.
_AT_START = re.compile(
    r"^\s{0,8}(?:[-|>*!#E] {0,4}|\*{3} |(?:Uncaught|Unhandled|Caught) (?:exception:? )?)?"
    + _NAME
    + r"(?:\((\w+)\))?(?::(?:\s|$)|\s*$)"
)
_INLINE = re.compile(
    r"(?:^|[\s:('\"`|\[])(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception))"
    r"(?:\((\w+Error)\)|\((?=['\"]))?(?:: ?|\(|, )(?=\S|$)"
)
_BARE = re.compile(
    r"(?:^|[\s:('\"])((?:Assertion|Attribute|Value|Type|Key|Index|Name|Import|ModuleNotFound|Runtime|ZeroDivision|Permission|FileNotFound|Syntax|OS|Connection)Error)\b"
)
_CODE = ("raise ", "except", "File ", "#", "from ", "import ", "class ", "def ")
CAUSE_MARK = "direct cause of the following exception"
HANDLING_MARK = "During handling of the above exception"


def exception_on(text: str) -> str | None:
    """The exception class that a line reports, or None; the innermost where one class names another."""
    match = _AT_START.match(text)
    if match and (match.group(1)[0].isupper() or "." in text.split(":")[0]):
        return match.group(2) or match.group(1)
    if text.lstrip().startswith(_CODE):
        return None
    match = _INLINE.search(text)
    if match:
        return match.group(2) or match.group(1)
    match = _BARE.search(text)
    return match.group(1) if match else None


def is_known_class(name: str) -> bool:
    """Whether a class leads to its reason by more than being an exception."""
    return name in _KNOWN or hasattr(builtins, name) or reason_of(name) != "RuntimeError"


def starts_with_exception(text: str) -> bool:
    """Whether the line begins as Python ends a traceback; such a line is never routine."""
    match = _AT_START.match(text)
    return match is not None and match.group(1)[0].isupper() and reason_of(match.group(1)) is not None


@cache
def reason_of(name: str) -> str | None:
    """The reason that an exception class stands for: itself, its built-in ancestors, or what its name ends in."""
    if name in PASSED_ON or name.endswith("Warning"):
        return None
    if name in _KNOWN:
        return _KNOWN[name]
    builtin = getattr(builtins, name, None)
    if isinstance(builtin, type) and issubclass(builtin, BaseException):
        for ancestor in builtin.__mro__:
            if ancestor.__name__ in CATEGORY_OF_REASON:
                return ancestor.__name__
            if ancestor.__name__ in _KNOWN:
                return _KNOWN[ancestor.__name__]
        return None
    suffixes = sorted((r for r in CATEGORY_OF_REASON if r.endswith("Error")), key=len, reverse=True)
    lowered = name.lower()
    for reason in suffixes:
        if lowered.endswith(reason.lower()) and reason != "OSError":
            return reason
    for part, reason in _PARTS:
        if part in lowered:
            return reason
    return "RuntimeError"
