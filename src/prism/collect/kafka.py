"""Flows from a Kafka topic: offsets are kept with the watch and committed for the group, each message is taken once.

A watch needs every partition, so it assigns them to itself: a group would make a restarted watch wait until its killed
predecessor has timed out. A group's committed offsets are where a watch without a state begins.
"""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import parse_qsl

import polars as pl

from prism.collect.counts import SourceCounts
from prism.collect.messages import MessageDecoder
from prism.collect.tables.aliases import Alias
from prism.errors import BadConfigError, MissingExtraError
from prism.records import FLOWS

_WORDS = re.compile(r"^kafka://(?P<brokers>[^/?]+)/(?P<topic>[A-Za-z0-9._-]+)(\?(?P<options>.*))?$")
_BATCH = 50_000  # messages decoded in one go
_MAX_NOTES = 20
_OPEN_S = 10.0
_PARTITIONS_EVERY_S = 60.0  # that new partitions are looked for


def open_kafka(words: str, position: dict[str, Any], columns: tuple[Alias, ...]) -> KafkaSource:
    """A source from `kafka://HOST:PORT[,HOST:PORT]/TOPIC[?group=NAME&from=earliest|latest&OPTION=VALUE]`."""
    match = _WORDS.match(words)
    if match is None:
        raise BadConfigError(
            f"{words}: expected kafka://HOST:PORT/TOPIC, as in kafka://localhost:9092/flows?group=prism"
        )
    options = dict(parse_qsl(match["options"] or ""))
    begin = options.pop("from", "latest")
    if begin not in ("earliest", "latest"):
        raise BadConfigError(f"{words}: from={begin}; expected from=earliest or from=latest")
    settings = {
        "bootstrap.servers": match["brokers"],
        "group.id": options.pop("group", "prism"),
        "auto.offset.reset": begin,
        "enable.auto.commit": False,  # Offsets are ours: they are kept together with what was learned up to them.
        "enable.partition.eof": False,
        **options,  # anything else is librdkafka's, such as security.protocol
    }
    return KafkaSource(match["topic"], settings, position, columns)


class KafkaSource:
    """The messages of one topic, from where the last run stopped."""

    is_live = False  # messages wait until they are read
    is_finished = False
    starts_over = False

    def __init__(
        self, topic: str, settings: dict[str, Any], position: dict[str, Any], columns: tuple[Alias, ...]
    ) -> None:
        try:
            import confluent_kafka
        except ImportError:
            raise MissingExtraError("reading from Kafka", "kafka") from None
        self._decoder = MessageDecoder(columns=columns)
        self._offsets: dict[int, int] = {int(p): int(offset) for p, offset in position.get("offsets", {}).items()}
        self._topic = topic
        self._kafka = confluent_kafka
        self._errors: dict[str, None] = {}
        try:
            self._consumer = confluent_kafka.Consumer({**settings, "error_cb": self._note_error})
            self._partitions: set[int] = set()
            self._assign(settings["auto.offset.reset"])
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            reason = error.args[0].str() if hasattr(error.args[0], "str") else str(error)
            raise BadConfigError(
                f"kafka://{settings['bootstrap.servers']}/{topic}: cannot be read ({reason}); check brokers and options"
            ) from None

    @property
    def counts(self) -> SourceCounts:
        """What was seen, kept and lost."""
        return self._decoder.counts

    @property
    def notes(self) -> tuple[str, ...]:
        """Errors of brokers, and messages that could not be understood."""
        return tuple([*self._errors, *self._decoder.notes][-_MAX_NOTES:])

    def poll(self, timeout_s: float) -> pl.DataFrame:
        """FLOWS of the messages that have come."""
        if time.monotonic() >= self._look_at:
            try:
                self._assign("earliest")  # A partition that is new has been written to since it was made.
            except self._kafka.KafkaException as error:  # Brokers that are away are asked again.
                self._note_error(error.args[0])
        values: list[bytes] = []
        end = time.monotonic() + timeout_s
        for message in self._consumer.consume(_BATCH, timeout_s):
            if message.error() is not None:
                self._note_error(message.error())
                continue
            due = self._offsets.get(message.partition(), -1)
            if message.offset() < due:
                self.counts.events["messages delivered again"] += 1
                continue
            if due >= 0 and message.offset() > due:
                # The topic let go of what was not read in time; compacted topics skip too.
                self.counts.lost += message.offset() - due
            self._offsets[message.partition()] = message.offset() + 1
            values.append(message.value() or b"")
        if not values:
            time.sleep(max(0.0, min(0.05, end - time.monotonic())))
            return FLOWS.empty()
        return self._decoder.decode(values)

    def save_position(self) -> dict[str, Any]:
        """The next offset of every partition."""
        return {"offsets": {str(partition): offset for partition, offset in self._offsets.items()}}

    def close(self) -> None:
        """Commit the offsets that were read, so that the lag of the group is right, and leave the group."""
        places = [self._kafka.TopicPartition(self._topic, p, offset) for p, offset in self._offsets.items()]
        try:
            if places:
                self._consumer.commit(offsets=places, asynchronous=False)
        except self._kafka.KafkaException as error:
            self._note_error(error.args[0])
        self._consumer.close()

    def _assign(self, begin: str) -> None:
        """Take every partition of the topic, each from where it was left."""
        self._look_at = time.monotonic() + _PARTITIONS_EVERY_S
        found = set(self._consumer.list_topics(self._topic, timeout=_OPEN_S).topics[self._topic].partitions)
        if found <= self._partitions:
            return
        edge = self._kafka.OFFSET_BEGINNING if begin == "earliest" else self._kafka.OFFSET_END
        places = [self._kafka.TopicPartition(self._topic, number) for number in sorted(found)]
        for place in self._consumer.committed(places, timeout=_OPEN_S):
            mark = self._offsets.get(place.partition, place.offset if place.offset >= 0 else edge)
            places[place.partition].offset = mark
        self._consumer.assign(places)
        self._partitions = found

    def _note_error(self, error: Any) -> None:
        self.counts.events["errors of brokers"] += 1
        if len(self._errors) < _MAX_NOTES:
            self._errors[f"kafka: {error}"] = None
