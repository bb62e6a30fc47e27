"""Real hosts on one machine: network namespaces on a bridge, and a real training program on them."""
