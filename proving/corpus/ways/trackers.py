"""Experiment trackers and uploads: Weights & Biases without a server or a key, object stores that stop half-way."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from launch import Program
from way import CannotMake, Place, Way

_STEPS = "for step in range(1, 21): print(f'step {step}/40 loss {2 / step:.4f}', flush=True)\n"
_WANDB = """import wandb
run = wandb.init(project="corpus", settings=wandb.Settings(init_timeout=8))
""" + _STEPS.replace(": print", ": run.log({'loss': 2 / step}); print")
_STORE = (
    """import http.server, socket, threading, time, boto3
from botocore.config import Config
class Handler(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        ANSWER
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
store = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.server_port}", region_name="us-east-1",
                     aws_access_key_id="corpus", aws_secret_access_key="corpus",
                     config=Config(retries={"max_attempts": 1}, read_timeout=2, connect_timeout=2))
"""
    + _STEPS
    + """open("step_20.pt", "wb").write(bytes(200_000))
store.upload_file("step_20.pt", "checkpoints", "run/step_20.pt")
"""
)
_RESET = """self.rfile.read(1000)
        import struct
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()"""
_DENIED = """self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wandb:
    """A program that reports to Weights & Biases, with these settings in its environment."""

    environment: tuple[tuple[str, str], ...]
    text: str = _WANDB

    def __call__(self, place: Place) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise CannotMake("wandb is not installed")
        Program(text=self.text, environment={"WANDB_SILENT": "false", **dict(self.environment)})(place)


def _store(answer: str) -> Program:
    return Program(text=_STORE.replace("ANSWER", answer))


_NOWHERE = (("WANDB_BASE_URL", "http://127.0.0.1:9"), ("WANDB_API_KEY", "0" * 40))
WAYS = (
    Way(name="wandb-out-of-reach", family="trackers", reason="ConnectionError", make=Wandb(environment=_NOWHERE),
        proof="CommError|Error", also=("NetworkError",), restarts=True),
    Way(name="wandb-key-missing", family="trackers", reason="PermissionError",
        make=Wandb(environment=(("HOME", "/nonexistent"), ("WANDB_API_KEY", ""))), proof="(?i)api.?key",
        also=("ValueError", "RuntimeError")),
    Way(name="wandb-offline-finished", family="trackers", reason="none",
        make=Wandb(environment=(("WANDB_MODE", "offline"),), text=_WANDB + 'run.finish(); print("training done")\n'),
        proof="training done", restarts=None),
    Way(name="upload-reset", family="storage", reason="S3StorageError", make=_store(_RESET), proof="Traceback",
        also=("ConnectionError",), restarts=True),
    Way(name="upload-times-out", family="storage", reason="S3StorageError", make=_store("time.sleep(30)"),
        proof="Traceback", also=("ConnectionError",), restarts=True),
    Way(name="upload-denied", family="storage", reason="S3StorageError", make=_store(_DENIED), proof="AccessDenied",
        also=("PermissionError",)),
)  # fmt: skip
