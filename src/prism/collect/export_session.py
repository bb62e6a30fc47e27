"""One exporter's stream (RFC 7011: a sender's address and port, and an observation domain): what it has announced."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from prism.collect.counts import SourceCounts
from prism.collect.record_sets import DataSet, read_columns
from prism.collect.sampling import Sampling
from prism.collect.templates import MAX_FIELDS, VARIABLE, Template, make_field, parse_templates

# With 2,048 streams these hold a collector under about 300 MB however it is flooded.
MAX_TEMPLATE_FIELDS = 4_096  # in all templates of a stream
MAX_WAITING_BYTES = 65_536
_REORDERED_BELOW = 10_000  # A sequence number that is further back means that the exporter started again.
_CLOCK_SLACK_MS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTime:
    """What a message's header says of time."""

    export_ns: int
    uptime_ms: int = -1  # IPFIX has none


@dataclass(slots=True)
class Announced:
    """What all ports of one sender and observation domain announced, and who of them waits for it."""

    templates: dict[int, Template] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    boot_ns: int = -1
    waiting: list[ExportSession] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class ExportSession:
    """Templates, sampling, clock and sequence of one exporter's stream; data sets in, decodable ones out."""

    exporter: str
    counts: SourceCounts
    shared: Announced = field(default_factory=Announced)
    sampling: Sampling = field(default_factory=Sampling)
    last_seen_ns: int = 0
    _templates: dict[int, Template] = field(default_factory=dict)
    _num_fields: int = 0
    _waiting: deque[tuple[int, bytes, MessageTime]] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _next_sequence: int | None = None
    _boot_ns: int = -1

    def learn_templates(self, body: bytes, *, is_options: bool, is_ipfix: bool) -> list[DataSet]:
        """Take a template set; returns the data sets that had been waiting for it."""
        made, withdrawn = parse_templates(body, is_options=is_options, is_ipfix=is_ipfix, faults=self.counts.malformed)
        for template_id in withdrawn:
            self._withdraw(template_id)
        for template in made:
            known = self._templates.get(template.id)
            if known == template:
                continue  # A refresh; the object is kept, so that its data sets are decoded together.
            self._num_fields += len(template.fields) - (len(known.fields) if known else 0)
            if self._num_fields > MAX_TEMPLATE_FIELDS:
                # More templates than any exporter needs: forget them all; the exporter repeats those that it uses.
                self.counts.dropped["templates beyond the limit of an exporter"] += len(self._templates)
                self._templates = {}
                self._num_fields = len(template.fields)
            elif known is not None:
                self.counts.events["templates changed"] += 1
            self._templates[template.id] = template
            self.shared.templates[template.id] = template
        if len(self.shared.templates) > MAX_TEMPLATE_FIELDS:
            self.shared.templates = dict(self._templates)
        if not made:
            return []
        ready = self._release_waiting({t.id for t in made})
        for other in [s for s in self.shared.waiting if s is not self]:
            ready += other._release_waiting({t.id for t in made})
        return ready

    def take_data(self, set_id: int, body: bytes, time: MessageTime) -> tuple[DataSet | None, int | None]:
        """A data set ready to decode (None: it waits, or told of the exporter) and its records (None: unknown)."""
        template = self._find_template(set_id)
        if template is None:
            self._hold(set_id, body, time)
            return None, None
        found = self.make_set(template, body, time)
        if found.num_records == 0:
            self.counts.malformed["data set shorter than its record"] += 1
            return None, 0
        if template.is_options:
            self._learn_options(found)
            return None, found.num_records
        return found, found.num_records

    def give_up_waiting(self) -> None:
        """Count the data sets whose template did not come before the end."""
        if self._waiting:
            self.counts.dropped["data sets whose template never came"] += len(self._waiting)
        self._waiting, self._waiting_bytes = deque(), 0

    def _find_template(self, set_id: int) -> Template | None:
        """A port that announces templates is an exporter of its own; one that announces none uses its sender's."""
        known = self._templates.get(set_id)
        return known if known is not None or self._templates else self.shared.templates.get(set_id)

    def follow_sequence(self, sequence: int, units: int | None) -> None:
        """Compare a message's sequence number with the one due; `units` is what it adds (None: unknown)."""
        due = self._next_sequence
        if due is not None and sequence != due:
            ahead = (sequence - due) % 2**32
            if ahead < 2**31:
                self.counts.lost += ahead
                self.counts.events["sequence gaps"] += 1
            elif 2**32 - ahead < _REORDERED_BELOW:
                self.counts.events["messages out of order"] += 1
                return
            else:
                self.counts.events["exporter restarts"] += 1
        self._next_sequence = None if units is None else (sequence + units) % 2**32

    def follow_clock(self, unix_ns: int, uptime_ms: int, *, whole_seconds: bool) -> None:
        """Learn when the exporter started; a clock cut to whole seconds is up to 1 s early: the latest guess wins."""
        guess = unix_ns - uptime_ms * 1_000_000
        known = self._boot_ns
        tolerated = 1_000 + _CLOCK_SLACK_MS if whole_seconds else 0
        if known < 0 or guess > known or known - guess > tolerated * 1_000_000:
            self._boot_ns = guess

    def make_set(self, template: Template, body: bytes, time: MessageTime) -> DataSet:
        """A data set with all that its decoding needs to know of the exporter."""
        records = template.cut(body)
        return DataSet(
            template=template,
            payload=body,
            num_records=len(body) // (template.record_bytes or 1) if records is None else len(records),
            records=records,
            exporter=self.exporter,
            sampling=self.sampling if self.sampling.is_known else self.shared.sampling,
            export_ns=time.export_ns,
            uptime_ms=time.uptime_ms,
            boot_ns=self._boot_ns if self._boot_ns >= 0 else self.shared.boot_ns,
        )

    def save(self) -> dict[str, Any]:
        """Templates, sampling and clock, as a document."""
        templates = [
            {"id": t.id, "options": t.is_options, "fields": [[f.role, f.length] for f in t.fields]}
            for t in list(self._templates.values())
        ]
        selectors = [[selector, rate] for selector, rate in self.sampling.selectors.items()]
        return {"templates": templates, "rate": self.sampling.rate, "selectors": selectors, "boot_ns": self._boot_ns}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take back what `save` wrote."""
        for entry in saved["templates"]:
            fields = tuple(make_field(role, int(length)) for role, length in entry["fields"])
            if not 0 < len(fields) <= MAX_FIELDS or any(f.length < 0 or f.length > VARIABLE for f in fields):
                raise ValueError("a template of no or too many fields")
            self._templates[int(entry["id"])] = Template(int(entry["id"]), fields, bool(entry["options"]))
        self._num_fields = sum(len(t.fields) for t in self._templates.values())
        if self._num_fields > MAX_TEMPLATE_FIELDS:
            raise ValueError("more template fields than an exporter may have")
        self.sampling.rate = max(1, int(saved["rate"]))
        self.sampling.selectors = {int(selector): max(1, int(rate)) for selector, rate in saved["selectors"]}
        self._boot_ns = int(saved["boot_ns"])

    def _learn_options(self, found: DataSet) -> None:
        columns = read_columns(found.template, [found])
        self.sampling.learn(columns)
        self.shared.sampling.learn(columns)
        boot = columns.get("boot_ms")
        if boot is not None and 0 < int(boot[-1]) < 2**42:
            self._boot_ns = self.shared.boot_ns = int(boot[-1]) * 1_000_000

    def _withdraw(self, template_id: int) -> None:
        self.counts.events["templates withdrawn"] += 1
        if template_id in (2, 3):  # all templates, or all options templates (RFC 7011, section 8.1)
            options = template_id == 3
            gone = {i for i, t in self._templates.items() if t.is_options == options}
        else:
            gone = {template_id}
        for known in (self._templates, self.shared.templates):
            for one in gone:
                known.pop(one, None)
        self._num_fields = sum(len(t.fields) for t in self._templates.values())

    def _hold(self, set_id: int, body: bytes, time: MessageTime) -> None:
        self.counts.waiting += 1
        self._waiting.append((set_id, body, time))
        if self not in self.shared.waiting:
            self.shared.waiting.append(self)
        self._waiting_bytes += len(body)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft()[1])
            self.counts.dropped["data sets whose template never came"] += 1

    def _release_waiting(self, known: set[int]) -> list[DataSet]:
        held, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        ready: list[DataSet] = []
        for set_id, body, time in held:
            if set_id not in known or self._find_template(set_id) is None:
                self._waiting.append((set_id, body, time))
                self._waiting_bytes += len(body)
                continue
            found, _ = self.take_data(set_id, body, time)
            if found is not None:
                ready.append(found)
        if not self._waiting:
            self.shared.waiting = [s for s in self.shared.waiting if s is not self]
        return ready
