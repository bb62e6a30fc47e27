"""What goes wrong inside a training step: shapes, gradients, NaN, devices that are not there."""

from __future__ import annotations

from launch import Ranks
from trainer import trainer
from way import Way

from ways.forked import forked

_OTHER_MODEL = """
def build():
    return torch.nn.Linear(32, 8 + rank)
"""
_UNUSED = """
class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(32, 8), torch.nn.Linear(32, 8)

    def forward(self, x):
        return self.used(x)
"""


def _replaced(name: str, head: str, new: str) -> Ranks:
    return Ranks(program=trainer(name, head=head).replace("DistributedDataParallel(build())", new))


WAYS = [
    forked("attention-shape", {"reason": "RuntimeError", "proof": r"must match the size of tensor b"},
           at="torch.randn(4, 32) + torch.randn(4, 31)"),
    forked("half-against-float", {"reason": "RuntimeError", "proof": r"same dtype|expected scalar type"},
           at="torch.nn.Linear(32, 8)(batch.double())"),
    forked("changed-in-place", {"reason": "RuntimeError", "proof": r"modified by an inplace operation"},
           at="""
           weight = torch.randn(4, requires_grad=True)
           hidden = weight.exp()
           hidden.add_(1)
           hidden.sum().backward()
           """),
    forked("backward-twice", {"reason": "RuntimeError", "proof": r"backward through the graph a second time"},
           at="""
           auxiliary = model(batch).square().sum()
           auxiliary.backward()
           auxiliary.backward()
           """, rank=None),
    Way(name="unused-parameters", family="torch", reason="RuntimeError", proof=r"finished reduction in the prior",
        make=_replaced("unused-parameters", _UNUSED, "DistributedDataParallel(Branches())")),
    Way(name="models-differ-between-ranks", family="torch", reason="RuntimeError", also=("ValueError",),
        proof=r"in this process|DDP expects|shape", restarts=False,
        make=_replaced("models-differ-between-ranks", _OTHER_MODEL.replace("build", "build_mine"),
                       "DistributedDataParallel(build_mine())")),
    forked("anomaly-found-nan", {"reason": "RuntimeError", "restarts": True, "proof": r"returned nan values"},
           at="""
           with torch.autograd.detect_anomaly():
               zero = torch.zeros(4, requires_grad=True)
               (zero.sqrt() * 0).sum().backward()
           """),
    forked("loss-asserted-finite", {"reason": "AssertionError", "restarts": True, "proof": r"AssertionError: .*nan"},
           rank=None,
           at="""
           value = (torch.tensor(0.0) / 0).item()
           assert value == value, f"loss is {value} at step {step}, check the learning rate"
           """),
    forked("scale-of-loss-exhausted",
           {"reason": "RuntimeError", "also": ("ValueError",), "restarts": True, "proof": r"non-finite"}, rank=None,
           at="""
           parameter = torch.nn.Parameter(torch.ones(3))
           parameter.grad = torch.tensor([float("inf"), 1.0, 1.0])
           torch.nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)
           """),
    forked("cuda-not-built", {"reason": "CUDAError", "also": ("AssertionError",), "proof": r"not compiled with CUDA"},
           rank=None, setup="build().to(torch.device('cuda', rank))"),
    forked("checkpoint-of-cuda", {"reason": "ModelLoadingError", "also": ("CUDAError", "RuntimeError"),
                                  "proof": r"Attempting to deserialize object on a CUDA"}, rank=None,
           setup="""
           torch.save(build().state_dict(), f"model_{rank}.pt")
           torch.load(f"model_{rank}.pt", map_location="cuda:0")
           """),
    forked("backend-not-built", {"reason": "RuntimeError", "also": ("NCCLRemoteError", "CUDAError", "ValueError"),
                                 "proof": r"NCCL"}, rank=None,
           setup='dist.init_process_group("nccl")'),
    forked("heads-do-not-divide", {"reason": "AssertionError", "proof": r"embed_dim must be divisible"}, rank=None,
           setup="torch.nn.MultiheadAttention(embed_dim=100, num_heads=12)"),
    forked("compiler-says-no", {"reason": "CalledProcessError", "proof": r"CalledProcessError"}, rank=None,
           setup="""
           import subprocess
           open("kernel.cpp", "w").write("int forward(float *x { return x[0]; }")
           subprocess.check_call(["g++", "-c", "kernel.cpp", "-o", f"kernel_{rank}.o"])
           """),
    forked("not-a-repository", {"reason": "CalledProcessError", "proof": r"exit status 128"}, rank=1,
           at="""
           import subprocess
           subprocess.run(["git", "-C", "/proc", "describe", "--tags"], check=True)
           """),
    forked("array-too-large", {"reason": "OutOfMemoryError", "proof": r"Unable to allocate"},
           load=("torch", "numpy"),
           at="""
           import numpy, resource
           resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
           numpy.ones((1 << 20, 1 << 15), dtype=numpy.float32)
           """),
    forked("python-memory", {"reason": "OutOfMemoryError", "proof": r"MemoryError"},
           at="""
           import resource
           resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
           cache = bytearray(64 << 30)
           """),
]  # fmt: skip
