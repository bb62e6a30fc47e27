"""Broken data, broken checkpoints, and loader processes that die."""

from __future__ import annotations

from ways.forked import forked

_SAMPLES = """
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
{body}
        return torch.zeros(4)
"""
_TEXT = """
class TextShards(torch.utils.data.Dataset):
    def __init__(self, path):
        self.rows = self.load_shard(path)

    def load_shard(self, path):
{body}
"""


def _samples(body: str) -> str:
    return _SAMPLES.format(body="\n".join(f"        {line}" for line in body.splitlines()))


def _shards(body: str) -> str:
    return _TEXT.format(body="\n".join(f"        {line}" for line in body.splitlines()))


_LOADED = {"reason": "DatasetLoadingError"}
_MODEL = {"reason": "ModelLoadingError"}
_READ = "list(torch.utils.data.DataLoader(Samples(), num_workers=2{more}))"

WAYS = [
    forked("record-cut-short", {**_LOADED, "also": ("ValueError",), "proof": r"JSONDecodeError"},
           head=_shards("import json\nreturn [json.loads(line) for line in open(path)]"),
           at="""
           open("shard-3.jsonl", "w").write('{"text": "a"}\\n{"text": "b')
           TextShards("shard-3.jsonl")
           """),
    forked("text-not-utf8", {**_LOADED, "also": ("ValueError",), "proof": r"UnicodeDecodeError"},
           head=_shards("return open(path, encoding='utf-8').read().splitlines()"),
           at="""
           open("shard-9.txt", "wb").write(b"caf\\xe9 au lait")
           TextShards("shard-9.txt")
           """),
    forked("archive-cut-short", {**_LOADED, "proof": r"BadZipFile"}, load=("torch", "numpy"),
           head=_shards("import numpy\nreturn numpy.load(path)['tokens']"),
           at="""
           import numpy
           numpy.savez("tokens.npz", tokens=numpy.arange(4000))
           data = open("tokens.npz", "rb").read()
           open("tokens.npz", "wb").write(data[:1000])
           TextShards("tokens.npz")
           """),
    forked("parquet-without-footer", {**_LOADED, "proof": r"ArrowInvalid"}, load=("torch", "pyarrow.parquet"),
           head=_shards("import pyarrow.parquet\nreturn pyarrow.parquet.read_table(path).to_pylist()"),
           at="""
           open("part-00004.parquet", "wb").write(b"PAR1" + bytes(500))
           TextShards("part-00004.parquet")
           """),
    forked("gzip-checksum", {**_LOADED, "also": ("OSError",), "proof": r"BadGzipFile|EOFError"},
           head=_shards("import gzip\nreturn gzip.open(path, 'rt').readlines()"),
           at="""
           import gzip
           data = gzip.compress(b"line of text\\n" * 1000)
           open("web.txt.gz", "wb").write(data[:-9] + b"\\0" * 9)
           TextShards("web.txt.gz")
           """),
    forked("length-asserted", {"reason": "AssertionError", "proof": r"AssertionError: sample"},
           head=_shards("rows = [[1] * 9, [1] * 8]\n"
                        "assert len({len(r) for r in rows}) == 1, f'sample 1 of {path} has another length'"),
           at="TextShards('packed.bin')"),
    forked("loader-raises", {"reason": "KeyError", "proof": r"Caught KeyError in DataLoader worker"},
           head=_samples("return {'text': 'x'}['image'] if index == 9 else torch.zeros(4)"),
           at=_READ.format(more="")),
    forked("loader-crashes", {"reason": "DataloaderKilled", "restarts": True, "proof": r"killed by signal: Segm"},
           head=_samples("os.kill(os.getpid(), signal.SIGSEGV)"), at=_READ.format(more="")),
    forked("loader-exits", {"reason": "DataloaderKilled", "restarts": True, "proof": r"exited unexpectedly"},
           head=_samples("os._exit(3)"), at=_READ.format(more="")),
    forked("loader-stalls", {"reason": "DataloaderKilled", "also": ("RuntimeError",), "restarts": True,
                             "proof": r"DataLoader timed out after"},
           head=_samples("time.sleep(60)"), at=_READ.format(more=", timeout=3"), timeout_s=30),
    forked("collate-of-uneven", {"reason": "RuntimeError", "proof": r"stack expects each tensor to be equal size"},
           head=_samples("return torch.zeros(index)"),
           at="list(torch.utils.data.DataLoader(Samples(), batch_size=4))"),
    forked("safetensors-header", {**_MODEL, "proof": r"SafetensorError"}, load=("torch", "safetensors.torch"),
           rank=None,
           setup="""
           import safetensors.torch
           open("model.safetensors", "wb").write(b"\\xff" * 64)
           safetensors.torch.load_file("model.safetensors")
           """),
    forked("pointer-for-checkpoint", {**_MODEL, "proof": r"UnpicklingError"}, rank=None,
           setup="""
           open("model.pt", "w").write("version https://git-lfs.github.com/spec/v1\\noid sha256:12\\nsize 5\\n")
           build().load_state_dict(torch.load("model.pt"))
           """),
    forked("checkpoint-lacks-keys", {**_MODEL, "proof": r"Missing key\(s\) in state_dict"}, rank=None,
           setup="build().load_state_dict({'0.weight': torch.zeros(64, 32)})"),
    forked("optimizer-of-another-model", {**_MODEL, "also": ("ValueError",), "proof": r"loaded state dict"}, rank=None,
           setup="""
           saved = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters()).state_dict()
           torch.optim.AdamW(build().parameters()).load_state_dict(saved)
           """),
    forked("sharded-checkpoint-lacks-key", {**_MODEL, "also": ("RuntimeError",), "proof": r"Missing key in checkpoint"},
           load=("torch", "torch.distributed.checkpoint"),
           rank=None,
           at="""
           import torch.distributed.checkpoint as checkpoint
           checkpoint.save({"weight": torch.zeros(4)}, checkpoint_id="step-20")
           checkpoint.load({"weights": torch.zeros(4)}, checkpoint_id="step-20")
           """),
    forked("pool-worker-killed", {"reason": "RuntimeError", "also": ("DataloaderKilled",), "restarts": None,
                                  "proof": r"BrokenProcessPool"},
           at="""
           from concurrent.futures import ProcessPoolExecutor
           pool = ProcessPoolExecutor(1)
           pool.submit(os._exit, 9).result()
           """),
]  # fmt: skip
