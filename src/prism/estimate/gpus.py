"""What is known of each kind of GPU, and where each figure comes from; a kind that is not here is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, BadFileError
from prism.records.settings import nearest, parse_mapping, read_text

_DATA = resources.files("prism.estimate") / "data" / "gpus.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast one kind of GPU runs layers in one precision."""

    peak_flops: float
    linear: float  # share of the peak that matrix products reach
    attention: float  # share of BF16's peak
    wide_passes: float  # how often activations inside a layer cross memory
    full_passes: float  # how often those between blocks do
    band_pct: float  # what steps that were not used to fit this were off by, 95 of 100
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    origin: str
    speeds: dict[str, Speed] = field(default_factory=dict)

    @property
    def bf16_flops(self) -> float:
        """Dense BF16 FLOP/s of the data sheet."""
        return self.speeds["bf16"].peak_flops

    def speed(self, precision: str) -> Speed:
        """The row of a precision."""
        if precision not in self.speeds:
            raise BadConfigError(
                f"no layer times of {self.name} in {precision}; known are {', '.join(self.speeds)}; choose one of "
                "these, or give a row of your own with --layers"
            )
        return self.speeds[precision]


def find_gpu(name: str, own: Path | None = None) -> Gpu:
    """A kind of GPU by its exact name."""
    known = load_gpus() | (read_gpus(read_text(own), str(own)) if own else {})
    if name not in known:
        raise BadConfigError(
            f"no layer times of the GPU '{name}'{nearest(name, tuple(known))}; known are {', '.join(sorted(known))}; "
            "give a row of your own with --layers (docs/estimate.md shows one)"
        )
    return known[name]


@cache
def load_gpus() -> dict[str, Gpu]:
    """The kinds that Prism brings along."""
    return read_gpus(_DATA.read_text("utf-8"), "gpus.yaml")


def read_gpus(text: str, where: str) -> dict[str, Gpu]:
    """Kinds of GPUs from YAML."""
    found = {}
    for name, row in parse_mapping(text, where, "names of GPUs").items():
        try:
            found[str(name)] = _read_gpu(str(name), dict(row))
        except (KeyError, TypeError, ValueError) as error:
            raise BadFileError(f"{where}: '{name}' is not a GPU's row ({error}); see `prism estimate --help`") from None
    return found


def _read_gpu(name: str, row: dict[str, Any]) -> Gpu:
    speeds = {}
    for precision, values in row["speeds"].items():
        numbers = {key: float(value) for key, value in values.items() if key not in ("origin", "peak_tflops")}
        if not all(0 < numbers[key] <= 1 for key in ("linear", "attention")):
            raise ValueError(f"'linear' and 'attention' of {precision} are shares of the peak, above 0 and up to 1")
        peak = float(values["peak_tflops"]) * 1e12
        speeds[str(precision)] = Speed(peak_flops=peak, origin=str(values["origin"]), **numbers)
    return Gpu(
        name=name,
        memory_bytes=float(row["memory_gb"]) * 1e9,
        memory_bytes_per_s=float(row["memory_gb_per_s"]) * 1e9,
        origin=str(row["origin"]),
        speeds={"bf16": speeds.pop("bf16"), **speeds},
    )
