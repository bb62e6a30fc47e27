"""FSDP2 with torch.distributed.checkpoint: asynchronous saves every four steps, a reload of the last one half-way."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class TrainState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = int(state["step"])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(40, 40) for _ in range(4)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    state = TrainState(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    # The background save talks over a group of its own, so that it cannot mix with the training's collectives.
    save_group = dist.new_group(backend="gloo")
    pending, reloaded = None, False
    while state.step < 12:
        x = torch.randn(8, 40)
        (model(x) - x).pow(2).mean().backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        if state.step % 4 == 0:
            if pending is not None:
                pending.result()
            pending = dcp.async_save({"app": state}, checkpoint_id=f"ckpt-{state.step}", process_group=save_group)
        if state.step == 10 and not reloaded:
            pending.result()
            dcp.load({"app": state}, checkpoint_id="ckpt-8")
            reloaded = True
    pending.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
