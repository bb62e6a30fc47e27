"""Real hangs of small gloo jobs, each a folder with Flight Recorder dumps, rank logs and the truth."""
