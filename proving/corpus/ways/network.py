"""Peers and services that cannot be reached, rendezvous that fails, ranks that hang."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace

from launch import Program
from way import CannotMake, Place, Way

from ways.forked import forked


def _without_network(place: Place, rank: int) -> None:
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(0x40000000):
        raise CannotMake("needs root, to make a network namespace")


_CONNECTION = {"reason": "ConnectionError", "also": ("NetworkError",)}
_OBJECTS = """\
import http.server, threading

import boto3
from botocore.config import Config


class Store(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<?xml version='1.0'?><Error><Code>%(code)s</Code><Message>%(words)s</Message></Error>"
        self.send_response(%(status)d)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("reading the list of shards", flush=True)
client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.server_port}", region_name="eu-west-1",
                      %(login)s config=Config(retries={"max_attempts": 1}, connect_timeout=2))
client.get_object(Bucket="corpus-of-run", Key="tokens/index.json")
"""
_LOGIN = 'aws_access_key_id="a", aws_secret_access_key="b",'
_ALONE = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}


def _store(name: str, restarts: bool, proof: str, **words: object) -> Way:
    text = _OBJECTS % {"code": "AccessDenied", "words": "Access Denied", "status": 403, "login": _LOGIN, **words}
    return Way(name=name, family="storage", reason="S3StorageError", proof=proof, restarts=restarts,
               make=Program(text=text, environment=_ALONE))  # fmt: skip


_REFUSED = _OBJECTS.replace("{server.server_port}", "9")
_RESET = """\
import socket, struct, threading

server = socket.create_server(("127.0.0.1", 0))


def serve():
    peer, _ = server.accept()
    peer.recv(10)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


threading.Thread(target=serve).start()
import urllib.request
for step in range(1, 31):
    print(f"step {step}/500 loss {3 / step:.3f}", flush=True)
urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/v1/features", timeout=5).read()
"""

WAYS = [
    forked("service-refuses", {**_CONNECTION, "restarts": True, "proof": r"Connection refused"},
           at="""
           import http.client
           http.client.HTTPConnection("127.0.0.1", 9, timeout=3).request("POST", "/metrics", body="{}")
           """),
    Way(name="service-resets", family="network", reason="ConnectionError", proof=r"Connection reset by peer",
        also=("NetworkError",), restarts=True, make=Program(text=_RESET)),
    forked("name-not-resolved", {**_CONNECTION, "restarts": None, "proof": r"gaierror"},
           at="""
           import urllib.request
           urllib.request.urlopen("http://features.cluster.invalid/v1", timeout=3)
           """),
    forked("no-route-at-all", {**_CONNECTION, "also": ("NetworkError", "OSError"), "restarts": None,
                               "proof": r"Network is unreachable"},
           prepare=_without_network, rank=None,
           setup="""
           import socket
           socket.create_connection(("10.1.2.3", 80), timeout=3)
           """),
    forked("rendezvous-port-taken", {**_CONNECTION, "also": ("NetworkError", "OSError", "RuntimeError"),
                                     "restarts": None, "proof": r"EADDRINUSE"}, rank=0,
           setup="""
           if rank == 0:
               import socket
               taken = socket.create_server(("0.0.0.0", int(os.environ["MASTER_PORT"])))
           """, timeout_s=5),
    forked("rendezvous-without-leader", {**_CONNECTION, "also": ("NetworkError", "NCCLTimeoutError"),
                                         "restarts": None, "proof": r"Dist(?:Network|Store)Error"}, rank=0,
           setup="""
           if rank == 0:
               time.sleep(12)
               sys.exit(0)
           """, timeout_s=5),
    replace(forked("barrier-names-a-rank",
                   {"reason": "NCCLTimeoutError", "restarts": True, "proof": r"monitoredBarrier"},
                   rank=None, timeout_s=60,
                   at="""
                   if rank == 1:
                       time.sleep(12)
                   dist.monitored_barrier(timeout=datetime.timedelta(seconds=4))
                   """), rank=1),
    forked("rank-stops-answering", {"reason": "NCCLTimeoutError", "restarts": True, "proof": r"Timed out waiting"},
           at="time.sleep(18)", timeout_s=5),
    forked("watchdog-of-the-script", {"reason": "NCCLTimeoutError", "also": ("Unknown",), "restarts": True,
                                      "proof": r"Timeout \(0:00:0"},
           head="import faulthandler, threading",
           at="""
           faulthandler.dump_traceback_later(3, exit=True)
           lock = threading.Lock()
           lock.acquire()
           lock.acquire()
           """, timeout_s=30),
    _store("bucket-forbidden", False, r"AccessDenied"),
    _store("bucket-missing", False, r"NoSuchBucket", code="NoSuchBucket", words="not there", status=404),
    _store("store-too-busy", True, r"SlowDown", code="SlowDown", words="reduce your rate", status=503),
    _store("store-without-login", False, r"NoCredentialsError", login=""),
    Way(name="store-refuses", family="storage", reason="S3StorageError", also=("ConnectionError",), restarts=True,
        proof=r"EndpointConnectionError|Could not connect",
        make=Program(environment=_ALONE, text=_REFUSED % {"code": "", "words": "", "status": 500, "login": _LOGIN})),
]  # fmt: skip
