"""Training with known truth: simulated clusters (scenarios/), real hosts on one machine (testbed/), and the tour."""
