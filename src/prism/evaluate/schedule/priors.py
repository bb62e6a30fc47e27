"""How long a dataset is expected to take, per model size: estimated, recorded, and learned while it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, overload

from prism.errors import BadFileError
from prism.evaluate.files import replace_file
from prism.evaluate.schedule.trials import Checkpoint, Dataset

SCHEMA = "prism.priors/1"

# First guesses, replaced by the first measured part. A forward pass costs two operations per parameter and token
# (Kaplan et al. 2020); 1e14 of them a second is a third of what an A100 can do at most in 16 bits.
_OPERATIONS_PER_S = 1e14
_TOKENS = 512
_PARAMETERS = 1_000_000_000
_MIN_INFER_S = 1e-3
_DEVICE_BYTES_PER_S = 5e9
_START_S = 5.0
_SETUP_S = 2.0
_SCORE_S = 1e-3
_WRONG = math.log(1.25)  # recorded run times that are this far apart in their error are not relied on


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is expected of one dataset with one model."""

    start_s: float  # the model from shared memory onto the device, once per worker
    setup_s: float  # the dataset made ready, once per worker that takes a share of it
    infer_s: float  # per sample
    score_s: float  # per sample
    measured: bool = False  # in this run
    trusted: bool = False  # measured, or recorded by an earlier run whose numbers have held so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Run times of one dataset with one model size; None where never seen."""

    dataset: str
    parameters: int
    infer_s: float | None = None
    score_s: float | None = None
    setup_s: float | None = None
    start_s: float | None = None


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: float = 0.0

    def add(self, total: float, count: float) -> None:
        self.total += total
        self.count += count

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


class _Ratios:
    """How measured run times compare with what was guessed, over the datasets measured so far."""

    __slots__ = ("_count", "_squares", "_total")

    def __init__(self) -> None:
        self._total, self._squares, self._count = 0.0, 0.0, 0  # of logarithms

    def add(self, ratio: float) -> None:
        """Take in the first part of a dataset."""
        self._total += math.log(ratio)
        self._squares += math.log(ratio) ** 2
        self._count += 1

    @property
    def typical(self) -> float:
        """How much longer than guessed this hardware takes."""
        # One more dataset that was guessed right is counted in, so that the first one measured does not decide alone.
        return math.exp(self._total / (self._count + 1))

    @property
    def spread(self) -> float:
        """How far the guesses are apart in their error: a factor that is the same for all does no harm."""
        mean = self._total / max(1, self._count)
        return math.sqrt(max(0.0, self._squares / max(1, self._count) - mean**2))


class _Seen:
    """What this run has measured of one dataset with one model size."""

    __slots__ = ("infer", "score", "setup", "start")

    def __init__(self) -> None:
        self.infer, self.score, self.setup, self.start = _Mean(), _Mean(), _Mean(), _Mean()


_NOTHING_SEEN, _NO_RATIOS = _Seen(), _Ratios()
_NO_GUESS = Prior(start_s=0.0, setup_s=0.0, infer_s=0.0, score_s=0.0)


class Priors:
    """Run times known so far: this run's own before recorded ones, those before estimates. Opens no file."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records: dict[str, dict[int, Record]] = {}
        for record in records:
            self._records.setdefault(record.dataset, {})[record.parameters] = record
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._starts: dict[int, _Mean] = {}
        self._ratios: dict[int, _Ratios] = {}  # measured to guessed, per model size

    @property
    def has_measured(self) -> bool:
        """Whether this run has measured anything."""
        return bool(self._seen)

    def prior(self, dataset: Dataset, checkpoint: Checkpoint, *, measured: bool = False) -> Prior:
        """The best guess for a dataset with a model of this size, or only what this run has `measured`."""
        guess = _NO_GUESS if measured else self._guess(dataset, checkpoint)
        seen = self._seen.get((dataset.name, checkpoint.parameters), _NOTHING_SEEN)
        ratios = self._ratios.get(checkpoint.parameters, _NO_RATIOS)
        start = self._starts.get(checkpoint.parameters, _Mean())
        known = seen.infer.value is not None
        return Prior(
            start_s=_first_known(start.value, guess.start_s),
            setup_s=_first_known(seen.setup.value, guess.setup_s),
            infer_s=_first_known(seen.infer.value, guess.infer_s * ratios.typical),
            score_s=_first_known(seen.score.value, guess.score_s),
            measured=known,
            trusted=known or (guess.trusted and ratios.spread < _WRONG),
        )

    def observe_inference(
        self, dataset: Dataset, checkpoint: Checkpoint, *, samples: int, seconds: float, setup_s: float, start_s: float
    ) -> None:
        """Take in one finished part; a set-up or start of 0 was not needed and says nothing."""
        seen = self._seen.setdefault((dataset.name, checkpoint.parameters), _Seen())
        first = not seen.infer.count
        seen.infer.add(max(0.0, seconds), samples)
        if first and seconds > 0:
            ratio = max(1e-9, seconds / samples) / self._guess(dataset, checkpoint).infer_s
            self._ratios.setdefault(checkpoint.parameters, _Ratios()).add(ratio)
        if setup_s > 0:
            seen.setup.add(setup_s, 1)
        if start_s > 0:
            seen.start.add(start_s, 1)
            self._starts.setdefault(checkpoint.parameters, _Mean()).add(start_s, 1)

    def observe_score(self, dataset: Dataset, checkpoint: Checkpoint, *, samples: int, seconds: float) -> None:
        """Take in one scored part."""
        seen = self._seen.setdefault((dataset.name, checkpoint.parameters), _Seen())
        seen.score.add(max(0.0, seconds), samples)

    def records(self) -> tuple[Record, ...]:
        """Everything worth keeping for the next run: what was recorded, overwritten by what was measured."""
        kept = {(r.dataset, r.parameters): r for sizes in self._records.values() for r in sizes.values()}
        for (dataset, parameters), seen in self._seen.items():
            old = kept.get((dataset, parameters), Record(dataset=dataset, parameters=parameters))
            kept[dataset, parameters] = Record(
                dataset=dataset,
                parameters=parameters,
                infer_s=_first_known(seen.infer.value, old.infer_s),
                score_s=_first_known(seen.score.value, old.score_s),
                setup_s=_first_known(seen.setup.value, old.setup_s),
                start_s=_first_known(seen.start.value, old.start_s),
            )
        return tuple(kept[key] for key in sorted(kept))

    def _guess(self, dataset: Dataset, checkpoint: Checkpoint) -> Prior:
        """A recorded run, of another model size where need be, or an estimate from sizes alone."""
        parameters = checkpoint.parameters or _PARAMETERS
        tokens = dataset.tokens or _TOKENS
        infer_s = max(_MIN_INFER_S, 2.0 * parameters * tokens / _OPERATIONS_PER_S)
        start_s = _START_S + checkpoint.bytes / _DEVICE_BYTES_PER_S
        record = self._nearest(dataset.name, checkpoint.parameters)
        if record is None:
            return Prior(start_s=start_s, setup_s=_SETUP_S, infer_s=infer_s, score_s=_SCORE_S)
        larger = parameters / (record.parameters or parameters)
        return Prior(
            start_s=start_s if record.start_s is None or larger != 1 else record.start_s,
            setup_s=_SETUP_S if record.setup_s is None else record.setup_s,
            infer_s=infer_s if record.infer_s is None else max(1e-9, record.infer_s * larger),
            score_s=_SCORE_S if record.score_s is None else record.score_s,
            trusted=record.infer_s is not None and larger == 1,
        )

    def _nearest(self, dataset: str, parameters: int) -> Record | None:
        """The record of the model size that is closest."""
        sizes = self._records.get(dataset)
        if not sizes:
            return None
        if parameters in sizes:
            return sizes[parameters]
        return min(sizes.values(), key=lambda r: abs(math.log((r.parameters or 1) / (parameters or 1))))


@overload
def _first_known(new: float | None, old: float) -> float: ...
@overload
def _first_known(new: float | None, old: float | None) -> float | None: ...
def _first_known(new: float | None, old: float | None) -> float | None:
    return old if new is None else new


def read_priors(path: Path) -> Priors:
    """The run times that earlier evaluations left in a file."""
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            raise BadFileError(f"{path}: schema is {document['schema']!r}, expected '{SCHEMA}'")
        return Priors([_read_record(entry) for entry in document["records"]])
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFileError(f"{path}: not a file of run times ({error!r}); delete it to start anew") from None


def _read_record(entry: Any) -> Record:
    record = Record(**entry)
    if type(record.dataset) is not str or type(record.parameters) is not int or record.parameters < 0:
        raise ValueError(f"dataset and parameters of {entry}")
    for spec in fields(Record)[2:]:
        value = getattr(record, spec.name)
        if value is not None and not (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        ):
            raise ValueError(f"{spec.name} of {record.dataset}: {value!r}")
    return record


def write_priors(priors: Priors, path: Path) -> None:
    """Keep the run times for the next evaluation; readers never see half a file."""
    document = {"schema": SCHEMA, "records": [asdict(record) for record in priors.records()]}
    replace_file(path, json.dumps(document, indent=1) + "\n")
