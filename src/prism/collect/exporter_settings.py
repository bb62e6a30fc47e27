"""What to type on exporters so that their records show training steps, by vendor; tried for softflowd alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one exporter that decide what its records show."""

    exporter: str
    shorter_records: tuple[str, ...] = ()  # active and inactive timeouts
    packets: tuple[str, ...] = ()  # where its timeouts cannot be short enough
    more_samples: tuple[str, ...] = ()
    finer_times: tuple[str, ...] = ()


SETTINGS: dict[str, Settings] = {
    "arista": Settings(
        exporter="Arista EOS",
        shorter_records=("flow tracking hardware", "tracker prism", "record export on inactive timeout 500",
                         "record export on interval 1000"),
        more_samples=("sflow sample dangerous 1000", "sflow polling-interval 10"),
    ),
    "cisco-ios": Settings(
        exporter="Cisco IOS XE",
        shorter_records=("flow monitor PRISM", "cache timeout active 1", "cache timeout inactive 1"),
        finer_times=("flow record PRISM", "collect timestamp absolute first", "collect timestamp absolute last"),
    ),
    "cisco-nxos": Settings(
        exporter="Cisco NX-OS",
        more_samples=("feature sflow", "sflow sampling-rate 4096", "sflow counter-poll-interval 10"),
    ),
    "juniper": Settings(
        exporter="Juniper Junos",
        shorter_records=(
            "set services flow-monitoring version-ipfix template T flow-active-timeout 10",
            "set services flow-monitoring version-ipfix template T flow-inactive-timeout 10",
        ),
        more_samples=("set protocols sflow sample-rate ingress 1000", "set protocols sflow polling-interval 10"),
    ),
    "sonic": Settings(
        exporter="SONiC",
        more_samples=("config sflow enable", "config sflow interface sample-rate Ethernet0 1000",
                      "config sflow polling-interval 10"),
    ),
    "hsflowd": Settings(
        exporter="host-sflow (hosts, Cumulus)",
        more_samples=("hsflowd.conf: sflow { sampling = 1000  polling = 10  collector { ip=HOST udpport=6343 } }",),
    ),
    "softflowd": Settings(
        exporter="softflowd",
        shorter_records=("softflowd -t maxlife=1 -t expint=1 (records of 1 to 3 s: steps below 5 s need packets)",),
        packets=("tcpdump -i INTERFACE -s 96 -w capture.pcap tcp (softflowd has no timeout below 1 s)",),
        finer_times=("softflowd -v 10 -A milli",),
    ),
    "pmacct": Settings(
        exporter="pmacct",
        shorter_records=("nfprobe_timeouts: expint=1:maxlife=1:udp=1:tcp=1",),
        packets=("tcpdump -i INTERFACE -s 96 -w capture.pcap tcp (nfprobe has no timeout below 1 s)",),
        more_samples=("sampling_rate: 1000",),
        finer_times=("aggregate: ..., timestamp_start, timestamp_end", "timestamps_secs: false"),
    ),
    "nfdump": Settings(exporter="nfdump", finer_times=("TZ=UTC nfdump -r FILE -o json",)),
    "aws": Settings(
        exporter="Amazon VPC flow logs",
        shorter_records=("--max-aggregation-interval 60 (the shortest: steps cannot be seen)",),
    ),
    "gcp": Settings(
        exporter="Google VPC flow logs",
        shorter_records=("--logging-aggregation-interval=interval-5-sec (the shortest: steps cannot be seen)",),
        more_samples=("--logging-flow-sampling=1.0",),
    ),
}  # fmt: skip
