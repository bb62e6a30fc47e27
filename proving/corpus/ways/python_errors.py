"""Mistakes in a training script, as Python reports them."""

from __future__ import annotations

from launch import Program, Ranks
from way import Way

from ways.forked import forked

_CHOICE = """\
import argparse

parser = argparse.ArgumentParser(prog="pretrain.py")
parser.add_argument("--precision", choices=["fp32", "bf16"])
parser.add_argument("--micro-batch", type=int)
parser.parse_args(["--micro-batch", "8", "--precision", "fp8-e4m3"])
"""
_INDENT = """\
def build_model(hidden):
    layers = []
      layers.append(hidden)
    return layers
"""
_MATCHING = """\
import sys

print("loading the settings of run gpt-small", flush=True)
open("settings_small.py", "w").write("MODEL = {'hidden': 512, 'layers': [1, 2}\\n")
import settings_small
"""

WAYS = [
    forked("batch-without-labels", {"reason": "KeyError", "proof": r"KeyError: 'labels'"},
           at="""
           sample = {"input_ids": [1, 2], "attention_mask": [1, 1]}
           target = torch.tensor(sample["labels"])
           """),
    forked("environment-variable-missing", {"reason": "KeyError", "proof": r"KeyError: 'DATA_ROOT"}, rank=None,
           setup="shards = os.path.join(os.environ['DATA_ROOT_OF_RUN'], 'train')"),
    forked("unpacking-too-many", {"reason": "ValueError", "proof": r"too many values to unpack"},
           at="inputs, targets = torch.zeros(3, 4).unbind()"),
    forked("negative-learning-rate", {"reason": "ValueError", "proof": r"Invalid learning rate"}, rank=None,
           setup="torch.optim.AdamW(build().parameters(), lr=-3e-4)"),
    forked("none-in-sum", {"reason": "TypeError", "proof": r"TypeError: unsupported operand"},
           at="""
           auxiliary = {}.get("aux_loss")
           total = 0.5 + auxiliary
           """),
    forked("wrong-keyword", {"reason": "TypeError", "proof": r"unexpected keyword argument"}, rank=None,
           setup="torch.nn.TransformerEncoderLayer(d_model=32, num_heads=4)"),
    forked("token-outside-vocabulary", {"reason": "IndexError", "proof": r"IndexError: index out of range"},
           at="torch.nn.Embedding(1000, 32)(torch.tensor([5, 1000]))"),
    forked("none-has-no-attribute", {"reason": "AttributeError", "proof": r"AttributeError: 'NoneType'"},
           at="""
           scheduler = None
           scheduler.step()
           """),
    forked("module-lost-attribute", {"reason": "AttributeError", "proof": r"AttributeError: module 'torch"}, rank=None,
           setup="torch.set_default_flash_attention(True)"),
    forked("local-before-assignment", {"reason": "NameError", "proof": r"UnboundLocalError"},
           head="""
           def warmup(step):
               if step > 100:
                   scale = 1.0
               return scale * step
           """,
           at="warmup(step)"),
    forked("undefined-name", {"reason": "NameError", "proof": r"NameError: name"}, at="metrics.update(loss=0.3)"),
    forked("no-tokens-in-batch", {"reason": "ZeroDivisionError", "proof": r"ZeroDivisionError"},
           at="""
           tokens = int((batch > 1e9).sum())
           perplexity = 1.0 / tokens
           """),
    forked("endless-recursion", {"reason": "RuntimeError", "proof": r"RecursionError"},
           head="""
           def flatten(tree):
               return [leaf for child in tree for leaf in flatten([child])]
           """,
           at="flatten([1, [2]])"),
    forked("abstract-forward", {"reason": "RuntimeError", "proof": r"NotImplementedError"}, rank=None,
           at="torch.nn.Module()(batch)"),
    Way(name="choice-not-offered", family="python", reason="ArgumentError", proof=r"invalid choice",
        make=Ranks(program=_CHOICE, load=())),
    Way(name="bad-indentation", family="python", reason="SyntaxError", proof=r"IndentationError",
        make=Program(text=_INDENT)),
    Way(name="bracket-in-settings", family="python", reason="SyntaxError", proof=r"SyntaxError: closing",
        make=Ranks(program=_MATCHING, load=(), file="worker-{rank}.log")),
    Way(name="option-without-value", family="python", reason="ArgumentError", proof=r"expected one argument",
        make=Program(text=_CHOICE.replace('"fp8-e4m3"', '"bf16", "--micro-batch"'))),
    forked("name-gone-from-library", {"reason": "ImportError", "proof": r"ImportError: cannot import name"}, rank=None,
           setup="from torch.optim import ShampooFused"),
    forked("broken-extension", {"reason": "ImportError", "proof": r"ImportError: .*(?:invalid ELF|file too short)"},
           rank=None,
           setup="""
           open("fused_kernels.so", "wb").write(b"version https://git-lfs.github.com/spec/v1" * 40)
           import fused_kernels
           """),
    forked("shared-library-missing",
           {"reason": "ImportError", "also": ("OSError",), "proof": r"cannot open shared object file"}, rank=None,
           setup="""
           import ctypes
           ctypes.CDLL("libnccl-net-ofi.so.7")
           """),
    forked("older-package-needed", {"reason": "ImportError", "proof": r"is required for a normal functioning"},
           load=("torch", "transformers"), rank=None, family="transformers",
           setup="""
           from transformers.utils.versions import require_version
           require_version("tokenizers>=0.99")
           """),
]  # fmt: skip
