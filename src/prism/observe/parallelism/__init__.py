"""What each pair of endpoints carries, and how a job is laid out."""
