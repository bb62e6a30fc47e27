"""Recognise exception lines, and map the class of an exception to a reason."""

from __future__ import annotations

import builtins
import re
from functools import cache

from prism.records.verdict import CATEGORY_OF_REASON

# Classes of libraries whose name alone gives no reason, or the wrong one.
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
    "MissingConfigException": "FileNotFoundError", "BadGzipFile": "DatasetLoadingError",
    "EmptyDataError": "DatasetLoadingError", "ArrowInvalid": "DatasetLoadingError",
    "ArrowMemoryError": "OutOfMemoryError", "RequestException": "ConnectionError", "SSLError": "ConnectionError",
    "ProxyError": "ConnectionError", "RetryError": "ConnectionError", "HfHubHTTPError": "ConnectionError",
    "herror": "ConnectionError", "IncompleteReadError": "ConnectionError", "TracerBoolConversionError": "TypeError",
    "TracerArrayConversionError": "TypeError", "TracerIntegerConversionError": "TypeError",
    "UnexpectedTracerError": "TypeError", "KeyReuseError": "TypeError", "DTypePromotionError": "TypeError",
    "DivisionByZero": "ZeroDivisionError", "InvalidOperation": "ValueError", "UnsupportedOperation": "OSError",
    "FrozenInstanceError": "AttributeError", "UndefinedVariableError": "NameError",
    "PydanticUndefinedAnnotation": "NameError", "NoMatchingPeftModuleError": "ValueError",
    "NotFittedError": "ValueError", "InvalidVersion": "ValueError", "HjsonDecodeError": "ValueError",
    "TOMLDecodeError": "ValueError", "ActorHandleNotFoundError": "ValueError",
    "InterpolationResolutionError": "ValueError", "UnsupportedInterpolationType": "ValueError",
    "ColumnNotFoundError": "KeyError", "MisconfigurationException": "RuntimeError",
    "OfflineModeIsEnabled": "ConnectionError", "LocalEntryNotFoundError": "ConnectionError",
}  # fmt: skip
_SHARED_NAMES = frozenset({"error", "Error", "ClientError", "LZMAError"})  # of classes that many packages have
# Packages of which all exceptions mean the same, by the beginning of their dotted names.
_OF_PACKAGE = (
    ("botocore.", "S3StorageError"), ("boto3.", "S3StorageError"), ("s3transfer.", "S3StorageError"),
    ("urllib3.", "ConnectionError"), ("requests.", "ConnectionError"), ("httpx.", "ConnectionError"),
    ("httpcore.", "ConnectionError"), ("aiohttp.", "ConnectionError"), ("ssl.", "ConnectionError"),
    ("pyarrow.", "DatasetLoadingError"), ("omegaconf.", "ValueError"), ("pydantic", "ValueError"),
    ("struct.", "ValueError"), ("re.", "ValueError"), ("regex.", "ValueError"), ("binascii.", "ValueError"),
    ("zlib.", "DatasetLoadingError"), ("_lzma.", "DatasetLoadingError"), ("polars.", "ValueError"),
)  # fmt: skip
# Other parts of a class name that give a reason, in order of priority.
_PARTS = (("timeout", "ConnectionError"), ("connect", "ConnectionError"), ("notfound", "FileNotFoundError"),
          ("permission", "PermissionError"), ("argument", "ArgumentError"), ("option", "ArgumentError"),
          ("validation", "ValueError"), ("config", "ValueError"), ("checkpoint", "ModelLoadingError"),
          ("dataset", "DatasetLoadingError"), ("import", "ImportError"), ("parse", "SyntaxError"))  # fmt: skip
# Classes that only pass on another exception.
PASSED_ON = frozenset({"ChildFailedError", "RayTaskError", "RemoteError", "ProcessRaisedException",
                       "TrainingFailedError", "SIGTERMException",
                       "DatasetGenerationError", "Empty", "KeyboardInterrupt", "SystemExit", "SignalException",
                       "GeneratorExit", "CancelledError", "BrokenProcessPool", "Warning"})  # fmt: skip
_NAME = (
    r"(?:[A-Za-z_][\w]*\.)*_{0,2}([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Empty|Expired|Warning|NotFound|Failure|Invalid|Timeout)"
    r"|BadZipFile|StopIteration|Exception|timeout|error)"
)
# At the start of a line, as Python prints it; `error`, `timeout` only with a module before them.
_AT_START = re.compile(
    r"^\s{0,8}(?:[-|>*!#] {0,4}|E {1,4}|\*{3} |(?:Uncaught|Unhandled|Caught) (?:exception:? )?)?"
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
# Python ends a traceback with the dotted name of the class, which may have any ending.
_AFTER_FRAMES = re.compile(r"^((?:[A-Za-z_]\w*\.)*)_{0,2}([A-Z]\w+)(?:: |:?$)")
_CODE = ("raise ", "except", "File ", "#", "from ", "import ", "class ", "def ")
CAUSE_MARK = "direct cause of the following exception"
HANDLING_MARK = "During handling of the above exception"


def exception_on(text: str) -> str | None:
    """The exception class that a line reports, or None; if one class names another, the innermost."""
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


def exception_below(text: str) -> str | None:
    """The class on the line below a traceback's last frame, even if its name does not look like an exception's."""
    match = _AFTER_FRAMES.match(text)
    return match.group(2) if match and (match.group(1) or match.group(2) in _KNOWN) else None


def reason_on(text: str, name: str) -> str | None:
    """The reason for the class on this line; if its name gives none, its package decides."""
    if name in _SHARED_NAMES or (name not in _KNOWN and not hasattr(builtins, name)):
        for package, reason in _OF_PACKAGE:
            if text.startswith(package) and not (name.endswith("TypeError") or name in PASSED_ON):
                return reason
    return reason_of(name)


def is_known_class(name: str) -> bool:
    """Whether the class itself gives the reason, and not only the fact that it is an exception."""
    return name in _KNOWN or hasattr(builtins, name) or reason_of(name) != "RuntimeError"


def starts_with_exception(text: str) -> bool:
    """Whether the line looks like the last line of a Python traceback, which is never routine."""
    match = _AT_START.match(text)
    return match is not None and match.group(1)[0].isupper() and reason_of(match.group(1)) is not None


@cache
def reason_of(name: str) -> str | None:
    """The reason for an exception class: from its own name, its built-in base classes, or the end of its name."""
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
