"""How fast records are decoded, on one core: python proving/benchmarks/collect_speed.py.

sFlow samples (datagrams of seven sampled RoCEv2 headers), goflow2 messages as JSON and as protobuf, each through the
code that `prism watch` uses; beside them the standard library's JSON and Google's protobuf on the same messages.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from machine import describe_machine

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "collect"))

from goflow_messages import FlowMessage
from packet_bytes import ethernet, ip4, roce
from sflow_bytes import flow_sample, raw_header, sflow
from test_streams import flow_message, json_message

from prism.collect import Collector
from prism.collect.messages import MessageDecoder

NUM = 200_000


def rate(work: Callable[[], int]) -> float:
    """Records a second, the best of three runs."""
    work()
    best = 0.0
    for _ in range(3):
        begin = time.process_time()
        num = work()
        best = max(best, num / (time.process_time() - begin))
    return best


def main() -> None:
    """Print records decoded a second."""
    frames = [ethernet(ip4(f"10.0.{i}.1", f"10.0.{i}.2", 17, roce(7, i, 1, 4096))) for i in range(7)]
    datagram = sflow(*(flow_sample(raw_header(f), sequence=i + 1) for i, f in enumerate(frames)))

    def read_sflow() -> int:
        collector = Collector()
        num = 0
        for number in range(NUM // 7):
            collector.feed(datagram, ("10.9.9.9", 6343), number)
            if number % 10_000 == 0:
                num += collector.flush().height
        return num + collector.flush().height

    texts = [json_message(n) for n in range(NUM)]
    packed = [flow_message(n).SerializeToString() for n in range(NUM)]

    def decode(values: list[bytes]) -> int:
        decoder = MessageDecoder()
        return sum(decoder.decode(values[at : at + 50_000]).height for at in range(0, len(values), 50_000))

    print(describe_machine())
    print(f"sFlow samples        {rate(read_sflow):12,.0f} /s")
    print(f"goflow2 JSON         {rate(lambda: decode(texts)):12,.0f} /s")
    print(f"  json.loads alone   {rate(lambda: sum(1 for t in texts if json.loads(t))):12,.0f} /s")
    print(f"goflow2 protobuf     {rate(lambda: decode(packed)):12,.0f} /s")
    print(f"  protobuf alone     {rate(lambda: sum(1 for p in packed if FlowMessage.FromString(p).bytes)):12,.0f} /s")


if __name__ == "__main__":
    main()
