"""Drills with real processes: each injects a fault, waits, and checks how the run ends."""
