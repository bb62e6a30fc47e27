"""observe on a stream: window, state, alerts, metrics."""
