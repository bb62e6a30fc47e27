"""NCCL's own cost model: channels, algorithms, protocols."""
