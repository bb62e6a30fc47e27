"""What a job left behind: traces and dumps (traces/), logs (logs/), and all of it together (fusion/)."""
