"""Transformers, Lightning and DeepSpeed, as their users meet them."""

from __future__ import annotations

from launch import Program, Ranks
from way import Way

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_LIGHTNING = """\
import warnings
import torch, lightning
from lightning.pytorch.callbacks import EarlyStopping


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]%(slice)s).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 8)), batch_size=4)
lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, %(options)s).fit(Net(), data%(fit)s)
"""
_FROM_HUB = """\
from transformers import AutoConfig

print("loading the model", flush=True)
AutoConfig.from_pretrained("example-lab/model-7b")
"""
_CPU = "accelerator='cpu'"


def _job(name: str, family: str, reason: str, proof: str, text: str, also: tuple[str, ...] = ()) -> Way:
    load = {"lightning": ("torch", "lightning"), "transformers": ("torch", "transformers")}.get(family, ("torch",))
    return Way(name=name, family=family, reason=reason, proof=proof, also=also,
               restarts=None if reason == "none" else False,
               make=Ranks(program=text, num_ranks=1, load=load, file="train.log"))  # fmt: skip


def _lightning(name: str, reason: str, proof: str, also: tuple[str, ...] = (), **words: str) -> Way:
    text = _LIGHTNING % {"slice": "", "options": _CPU, "fit": "", **words}
    text = "import os\nfor name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK'): os.environ.pop(name, None)\n" + text
    return _job(name, "lightning", reason, proof, text, also)


WAYS = [
    _lightning("lightning-step-shape", "RuntimeError", r"mat1 and mat2", slice="[:, :7]"),
    _lightning("lightning-monitor-missing", "RuntimeError", r"Early stopping conditioned on",
               options=_CPU + ", callbacks=[EarlyStopping('val_loss', check_on_train_epoch_end=True)]"),
    _lightning("lightning-resume-missing", "FileNotFoundError", r"FileNotFoundError|not found",
               fit=", ckpt_path='/checkpoints/last-7.ckpt'"),
    _lightning("lightning-without-gpu", "CUDAError", r"No supported gpu backend",
               options="accelerator='gpu', devices=2", also=("ArgumentError", "RuntimeError")),
    _lightning("finished-lightning", "none", r"max_epochs=2. reached"),
    Way(name="hub-offline", family="transformers", reason="ModelLoadingError", also=("ConnectionError",),
        proof=r"(?i)offline mode is enabled|outgoing traffic has been disabled|cached files",
        make=Program(text=_FROM_HUB, environment=_OFFLINE)),
    Way(name="hub-unreachable", family="transformers", reason="ModelLoadingError", also=("ConnectionError",),
        proof=r"couldn't connect|Check your internet connection", restarts=None,
        make=Program(text=_FROM_HUB, environment={"HF_ENDPOINT": "http://127.0.0.1:9"})),
    _job("tokenizer-file-broken", "transformers", "ModelLoadingError", r"Exception: |JSONDecodeError",
         "from tokenizers import Tokenizer\nopen('tokenizer.json', 'w').write('{\"model\": {\"type\": ')\n"
         "Tokenizer.from_file('tokenizer.json')\n", also=("ValueError",)),
    _job("trainer-arguments-disagree", "transformers", "ValueError", r"ValueError",
         "from transformers import TrainingArguments\n"
         "TrainingArguments('out', load_best_model_at_end=True, save_strategy='steps', eval_strategy='epoch')\n",
         also=("ArgumentError",)),
]  # fmt: skip
