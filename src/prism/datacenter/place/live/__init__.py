"""Real clusters: their state, and how each job is submitted exactly once."""
