"""Flow records in tables: CSV, Parquet, JSON and Arrow with the column names of many tools -> FLOWS."""

from prism.collect.tables.files import (
    FlowOptions,
    FlowsRead,
    ReadReport,
    load_flows,
    read_flows,
    scan_flows,
    write_flows,
)

__all__ = ["FlowOptions", "FlowsRead", "ReadReport", "load_flows", "read_flows", "scan_flows", "write_flows"]
