"""How long a dataset is expected to take, per model size: measured in this run, recorded, or estimated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from prism.errors import BadConfigError, BadFileError
from prism.evaluate.schedule.trials import Checkpoint, Dataset
from prism.machine.files import write_durably
from prism.records.settings import Checked, build, number

SCHEMA = "prism.priors/1"
Other = TypeVar("Other")

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
_WRONG = math.log(1.25)  # recorded run times that are this far off are not relied on
_SPREADS = {"record": 0.2, "estimate": 1.0}  # how far off guesses may be: standard deviations of logarithms
_SCORE_SPREAD = 0.5
_NO_ERROR = 0.04  # datasets whose guess was right, that are assumed before any is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is expected of one dataset with one model."""

    start_s: float  # the model from shared memory onto the device, once per worker
    setup_s: float  # the dataset made ready, once per worker that takes a share of it
    infer_s: float  # per sample
    score_s: float  # per sample
    measured: bool = False  # in this run
    trusted: bool = False  # measured, or recorded by an earlier run whose numbers have held so far
    score_spread: float = 0.0  # standard deviation of the logarithm of score_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Checked):
    """Run times of one dataset with one model size; None where never seen."""

    dataset: str
    parameters: int = number(MISSING, 0, math.inf)
    infer_s: float | None = number(None, 0, math.inf)
    score_s: float | None = number(None, 0, math.inf)
    setup_s: float | None = number(None, 0, math.inf)
    start_s: float | None = number(None, 0, math.inf)
    shrink: int | None = number(None, 0, 64)  # halvings of the batch that were needed to fit into memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What one part took, and where."""

    samples: int
    seconds: float
    setup_s: float = 0.0
    start_s: float = 0.0


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: float = 0.0

    def add(self, total: float, count: float) -> None:
        self.total += total
        self.count += count

    def value_or(self, other: Other) -> float | Other:
        """The mean, or something else where nothing was seen."""
        return self.total / self.count if self.count else other


@dataclass(slots=True)
class _Seen:
    """What this run has measured of one dataset with one model size."""

    infer: _Mean = field(default_factory=_Mean)
    score: _Mean = field(default_factory=_Mean)
    setup: _Mean = field(default_factory=_Mean)
    start: _Mean = field(default_factory=_Mean)


_NOTHING_SEEN = _Seen()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    """What is expected before this run has measured anything, and where that comes from."""

    prior: Prior
    kind: str  # "record" or "estimate"


class Priors:
    """Run times known so far: this run's own before recorded ones, those before estimates. Opens no file.

    Where guesses of one kind were all off by the same factor, so will the next ones be.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records: dict[str, dict[int, Record]] = {}
        self._halvings: dict[tuple[str, int], int] = {}
        for record in records:
            self._records.setdefault(record.dataset, {})[record.parameters] = record
            if record.shrink:
                self._halvings[record.dataset, record.parameters] = record.shrink
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._starts: dict[int, _Mean] = {}
        self._errors: dict[str, list[float]] = {kind: [] for kind in _SPREADS}  # log(measured / guessed) by dataset

    @property
    def has_measured(self) -> bool:
        """Whether this run has measured anything."""
        return bool(self._seen)

    def prior(self, dataset: Dataset, checkpoint: Checkpoint) -> Prior:
        """The best guess for a dataset with a model of this size."""
        guess = self._guess(dataset, checkpoint)
        seen = self._seen.get((dataset.name, checkpoint.parameters), _NOTHING_SEEN)
        known = seen.infer.count > 0
        errors = self._errors[guess.kind]
        # A factor that is the same for all of them is no error: it does not change which dataset takes longer.
        error = math.fsum(errors) / (len(errors) + _NO_ERROR)
        around = 2 * _SPREADS[guess.kind] ** 2 + math.fsum((each - error) ** 2 for each in errors)
        spread = math.sqrt(around / (2 + len(errors)))
        return Prior(
            start_s=self._starts.get(checkpoint.parameters, _Mean()).value_or(guess.prior.start_s),
            setup_s=seen.setup.value_or(guess.prior.setup_s),
            infer_s=seen.infer.value_or(guess.prior.infer_s * math.exp(error)),
            score_s=seen.score.value_or(guess.prior.score_s),
            measured=known,
            trusted=known or (guess.prior.trusted and spread < _WRONG),
            score_spread=0.0 if seen.score.count else _SCORE_SPREAD,
        )

    def measured(self, dataset: Dataset, checkpoint: Checkpoint) -> Prior:
        """Only what this run has measured; nothing for the rest."""
        seen = self._seen.get((dataset.name, checkpoint.parameters), _NOTHING_SEEN)
        return Prior(
            start_s=self._starts.get(checkpoint.parameters, _Mean()).value_or(0.0),
            setup_s=seen.setup.value_or(0.0),
            infer_s=seen.infer.value_or(0.0),
            score_s=seen.score.value_or(0.0),
            measured=seen.infer.count > 0,
        )

    def halvings(self, dataset: Dataset, checkpoint: Checkpoint) -> int:
        """How often to halve the batch from the start, because larger ones ran out of memory with a model as large."""
        return max((n for (name, size), n in self._halvings.items()
                    if name == dataset.name and size <= checkpoint.parameters), default=0)  # fmt: skip

    def observe_overflow(self, dataset: Dataset, checkpoint: Checkpoint, shrink: int) -> None:
        """Take in that a batch, halved so many times, did not fit into memory."""
        key = dataset.name, checkpoint.parameters
        self._halvings[key] = max(self._halvings.get(key, 0), shrink + 1)

    def observe_inference(self, dataset: Dataset, checkpoint: Checkpoint, took: Took) -> None:
        """Take in one finished part; a set-up or start of 0 was not needed and says nothing."""
        seen = self._seen.setdefault((dataset.name, checkpoint.parameters), _Seen())
        if took.seconds > 0 and not seen.infer.count:
            guess = self._guess(dataset, checkpoint)
            self._errors[guess.kind].append(math.log(max(1e-9, took.seconds / took.samples) / guess.prior.infer_s))
        seen.infer.add(max(0.0, took.seconds), took.samples)
        if took.setup_s > 0:
            seen.setup.add(took.setup_s, 1)
        if took.start_s > 0:
            seen.start.add(took.start_s, 1)
            self._starts.setdefault(checkpoint.parameters, _Mean()).add(took.start_s, 1)

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
                infer_s=seen.infer.value_or(old.infer_s),
                score_s=seen.score.value_or(old.score_s),
                setup_s=seen.setup.value_or(old.setup_s),
                start_s=seen.start.value_or(old.start_s),
                shrink=old.shrink,
            )
        for (dataset, parameters), shrink in self._halvings.items():
            old = kept.get((dataset, parameters), Record(dataset=dataset, parameters=parameters))
            kept[dataset, parameters] = replace(old, shrink=shrink)
        return tuple(kept[key] for key in sorted(kept))

    def _guess(self, dataset: Dataset, checkpoint: Checkpoint) -> _Guess:
        """A recorded run, of another model size where need be, or an estimate from sizes alone."""
        parameters = checkpoint.parameters or _PARAMETERS
        tokens = dataset.tokens or _TOKENS
        infer_s = max(_MIN_INFER_S, 2.0 * parameters * tokens / _OPERATIONS_PER_S)
        start_s = _START_S + checkpoint.bytes / _DEVICE_BYTES_PER_S
        record = self._nearest(dataset.name, checkpoint.parameters)
        if record is None:
            prior = Prior(start_s=start_s, setup_s=_SETUP_S, infer_s=infer_s, score_s=_SCORE_S)
            return _Guess(prior=prior, kind="estimate")
        larger = parameters / (record.parameters or parameters)
        prior = Prior(
            start_s=start_s if record.start_s is None or larger != 1 else record.start_s,
            setup_s=_SETUP_S if record.setup_s is None else record.setup_s,
            infer_s=infer_s if record.infer_s is None else max(1e-9, record.infer_s * larger),
            score_s=_SCORE_S if record.score_s is None else record.score_s,
            trusted=record.infer_s is not None and larger == 1,
        )
        return _Guess(prior=prior, kind="estimate" if record.infer_s is None else "record")

    def _nearest(self, dataset: str, parameters: int) -> Record | None:
        """The record of the model size that is closest."""
        sizes = self._records.get(dataset)
        if not sizes:
            return None
        if parameters in sizes:
            return sizes[parameters]
        return min(sizes.values(), key=lambda r: abs(math.log((r.parameters or 1) / (parameters or 1))))


def read_priors(path: Path) -> Priors:
    """The run times that earlier evaluations left in a file."""
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            raise BadFileError(f"{path}: schema is {document['schema']!r}, expected '{SCHEMA}'")
        records = [
            build(Record, entry, str(path), prefix=f"records[{i}].") for i, entry in enumerate(document["records"])
        ]
        return Priors(records)
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except BadConfigError as error:
        raise BadFileError(f"{error}; delete the file to start anew") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFileError(f"{path}: not a file of run times ({error!r}); delete it to start anew") from None


def write_priors(priors: Priors, path: Path) -> None:
    """Keep the run times for the next evaluation; readers never see half a file."""
    document = {"schema": SCHEMA, "records": [asdict(record) for record in priors.records()]}
    write_durably(path, json.dumps(document, indent=1) + "\n")
