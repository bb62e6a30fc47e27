"""Real clusters: what they answer, and how jobs are handed to them exactly once."""
