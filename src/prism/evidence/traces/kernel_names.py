"""What a GPU kernel does, from the name that NVIDIA's and AMD's tools give it."""

from __future__ import annotations

import polars as pl

# NCCL and RCCL (ncclKernel_, ncclDevKernel_, ncclSymDevKernel_), MSCCL, NVSHMEM, DeepEP, and the all-reduces that
# inference engines and PyTorch's symmetric memory bring along.
COMMUNICATION = (
    r"^(?:void )?(?:nccl\w*Kernel|rccl|mscclpp|mscclKernel|nvshmem|internode|intranode|deep_ep|"
    r"cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_|quickreduce|custom_all_reduce)"
)
# AMD's runtime copies and fills with kernels of its own.
MEMORY = r"^(?:Memcpy|Memset|Copy(?:Host|Device|Peer)|FillBuffer|hipMem|__amd_rocclr_(?:copy|fill)|dma)"
STEP = r"^ProfilerStep#?\s*(\d{1,9})"
# On CPUs collectives are annotations of the backend's own thread.
HOST_COLLECTIVE = r"^(?:gloo|mpi|ucc|xccl|hccl):(\w+)"

_COLLECTIVES = (
    ("all_reduce", r"all_?reduce"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all"),
    ("broadcast", r"broadcast"),
    ("send_recv", r"send_?recv|^send|^recv"),
    ("barrier", r"barrier"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
_DTYPES = {
    8: ("Double", "double", "Long", "long int"),
    4: ("Float", "float", "Int", "int", "UInt32"),
    2: ("Half", "c10::Half", "BFloat16", "c10::BFloat16", "Short"),
    1: ("Byte", "unsigned char", "Char", "signed char", "Bool", "bool", "Float8_e4m3fn", "Float8_e5m2"),
}
DTYPE_BYTES = {name: size for size, names in _DTYPES.items() for name in names}


def name_collective(text: pl.Expr) -> pl.Expr:
    """One word per kind of collective, from the name that the trace or the kernel gives it; null where unknown."""
    lower = text.str.to_lowercase()
    named = pl.lit(None, pl.String)
    for kind, pattern in reversed(_COLLECTIVES):
        named = pl.when(lower.str.contains(pattern)).then(pl.lit(kind)).otherwise(named)
    return named


def classify(category: pl.Expr, name: pl.Expr) -> pl.Expr:
    """Compute, communication or memory, for events that ran on a GPU."""
    return (
        pl.when(category.is_in(["gpu_memcpy", "gpu_memset", "Memcpy", "Memset"]) | name.str.contains(MEMORY))
        .then(pl.lit("memory"))
        .when(name.str.contains(COMMUNICATION))
        .then(pl.lit("communication"))
        .otherwise(pl.lit("compute"))
    )
