"""Jobs that come to their end, some of them with a good deal of noise."""

from __future__ import annotations

from collections.abc import Callable

from launch import Program, Ranks, Torchrun
from trainer import trainer
from way import Place, Way

_NOISY = """
           import warnings, traceback
           warnings.warn("the learning rate schedule was stepped before the optimizer")
           try:
               {}["cache"]
           except KeyError:
               traceback.print_exc()
               say("the cache is cold, reading from disk")
"""
_SAMPLE = "say('sample: RuntimeError: CUDA out of memory, said node-12, and Xid 79 was the end of it')"
_ONCE = """\
import os, sys

rank = os.environ["RANK"]
for step in range(1, 21):
    print(f"step {step}/20 loss {4 / step:.3f}", flush=True)
    if step == 9 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == "0":
        raise ConnectionResetError("the feature store went away")
print("training complete", flush=True)
"""
_PLAIN = """\
import logging, time

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
for epoch in range(1, 4):
    for step in range(1, 11):
        logging.info("epoch %d/3 step %d/10 loss %.4f", epoch, step, 2 / epoch / step)
    logging.warning("validation is slow: 3 of 4 requests were retried after a timeout")
logging.info("saved the model, done")
"""
_RETRY = """\
import urllib.error, urllib.request

for attempt in range(1, 4):
    try:
        urllib.request.urlopen("http://127.0.0.1:9/model", timeout=2)
    except urllib.error.URLError as error:
        print(f"attempt {attempt} of 3 failed: {error}; going on without the tracker", flush=True)
for step in range(1, 51):
    print({"loss": round(3 / step, 4), "grad_norm": 0.4, "epoch": step / 50}, flush=True)
print({"train_runtime": 8.1, "train_samples_per_second": 12.2, "train_loss": 0.27, "epoch": 1.0})
"""


def _finished(name: str, family: str, make: Callable[[Place], None], proof: str) -> Way:
    return Way(name=f"finished-{name}", family=family, reason="none", make=make, proof=proof, restarts=None)


WAYS = [
    _finished("ranks", "torch", Ranks(program=trainer("finished-ranks")), r"training finished"),
    _finished("with-noise", "torch", Ranks(program=trainer("finished-with-noise", at=_NOISY)), r"training finished"),
    _finished("prints-samples", "torch", Ranks(program=trainer("finished-prints-samples", at=_SAMPLE)),
              r"training finished"),
    _finished("nodes", "torch", Ranks(program=trainer("finished-nodes"), file="node-{rank}_rank_{rank}.log"),
              r"training finished"),
    _finished("plain-loop", "python", Program(text=_PLAIN), r"saved the model, done"),
    _finished("after-retries", "python", Program(text=_RETRY), r"train_runtime"),
    _finished("torchrun", "torchrun", Torchrun(text=_ONCE.replace('== "0" and', '== "9" and')), r"training complete"),
    _finished("torchrun-after-restart", "torchrun", Torchrun(text=_ONCE, options=("--max-restarts", "2")),
              r"training complete"),
]  # fmt: skip
