"""JAX on the CPU, Ray, and configuration libraries, each in an interpreter of its own."""

from __future__ import annotations

from launch import Program
from way import Way

_JAX = """\
import os
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp

weights = jnp.ones((16, 4))
for step in range(1, 11):
    weights = weights - 0.1 * jax.grad(lambda w: jnp.mean(w ** 2))(weights)
    print(f"step {step}/%d loss {float(jnp.mean(weights ** 2)):.4f}", flush=True)
%s
"""
_JAX_JOINS = """\
import jax.distributed
print("joining the coordinator", flush=True)
jax.distributed.initialize("127.0.0.1:9", 2, 1, initialization_timeout=6)
"""
_RAY = """\
import os, time
import ray

ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20)


@ray.remote(max_restarts=0)
class Trainer:
    def step(self, number):
        %s
        return number


trainer = Trainer.remote()
for number in range(1, 6):
    print("step", ray.get(trainer.step.remote(number)), "of 5", flush=True)
print("training finished", flush=True)
ray.shutdown()
"""
_HYDRA = """\
from omegaconf import OmegaConf

config = OmegaConf.create({"optimizer": {"lr": 0.1}})
OmegaConf.set_struct(config, True)
print("settings:", config, flush=True)
print(config.optimizer.weight_decay)
"""
_HYDRA_OVERRIDE = """\
import hydra


@hydra.main(version_base=None, config_path=None)
def main(config):
    print(config)


main()
"""
_YAML = """\
import yaml

open("run.yaml", "w").write("model:\\n  hidden: 512\\n layers: [1, 2\\n")
print("reading run.yaml", flush=True)
yaml.safe_load(open("run.yaml"))
"""


def _jax(name: str, reason: str, proof: str, last: str, steps: int = 50, also: tuple[str, ...] = (),
         restarts: bool | None = False) -> Way:  # fmt: skip
    return Way(name=name, family="jax", reason=reason, proof=proof, also=also, restarts=restarts,
               make=Program(text=_JAX % (steps, last)))  # fmt: skip


def _ray(name: str, reason: str, proof: str, body: str, also: tuple[str, ...] = (),
         restarts: bool | None = False, environment: dict[str, str] | None = None) -> Way:  # fmt: skip
    return Way(name=name, family="ray", reason=reason, proof=proof, also=also, restarts=restarts,
               make=Program(text=_RAY % body, environment=environment or {}))  # fmt: skip


WAYS = [
    Way(name="yaml-does-not-parse", family="configuration", reason="ArgumentError", also=("SyntaxError", "ValueError"),
        proof=r"yaml\.(?:parser|scanner)\.", make=Program(text=_YAML)),
    Way(name="setting-not-in-struct", family="configuration", reason="AttributeError",
        also=("ArgumentError", "KeyError"), proof=r"ConfigAttributeError", make=Program(text=_HYDRA)),
    Way(name="override-of-unknown-setting", family="configuration", reason="ArgumentError",
        also=("ValueError", "KeyError"), proof=r"Could not override",
        make=Program(text=_HYDRA_OVERRIDE, arguments=("optimizr.lr=0.1",))),
    _jax("jax-dot-shapes", "TypeError", r"TypeError: dot_general", "jnp.dot(weights, weights)"),
    _jax("jax-finds-nan", "RuntimeError", r"FloatingPointError",
         "jax.config.update('jax_debug_nans', True)\njnp.log(weights - 9)", also=("ValueError",), restarts=True),
    _jax("jax-out-of-memory", "OutOfMemoryError", r"RESOURCE_EXHAUSTED|Out of memory",
         "jnp.ones((1 << 20, 1 << 20, 4)).block_until_ready()"),
    _jax("jax-bool-of-tracer", "TypeError", r"TracerBoolConversionError",
         "jax.jit(lambda w: w if w.sum() > 0 else -w)(weights)"),
    Way(name="jax-coordinator-missing", family="jax", reason="ConnectionError", restarts=None,
        also=("NCCLTimeoutError", "NetworkError"), proof=r"DEADLINE_EXCEEDED|UNAVAILABLE",
        make=Program(text=_JAX_JOINS, environment={"JAX_PLATFORMS": "cpu"})),
    _jax("jax-joins-too-late", "RuntimeError", r"must be called before", _JAX_JOINS),
    _jax("finished-jax", "none", r"training finished", "print('training finished')", steps=10, restarts=None),
    _ray("ray-task-raises", "ValueError", r"RayTaskError\(ValueError\)", "int('4k') if number == 3 else None"),
    _ray("ray-actor-dies", "NodeFailure", r"ActorDiedError", "os.kill(os.getpid(), 9) if number == 3 else None",
         also=("OutOfMemoryError",), restarts=True),
    _ray("ray-node-low-on-memory", "OutOfMemoryError", r"OutOfMemoryError|running low on memory",
         "time.sleep(30) if number == 3 else None", environment={
             "RAY_memory_usage_threshold": "0.05", "RAY_memory_monitor_refresh_ms": "200"}),
    _ray("finished-ray", "none", r"training finished", "time.sleep(0.1)", restarts=None),
]  # fmt: skip
