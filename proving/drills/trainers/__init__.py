"""Training scripts as their users write them, for the drills."""
