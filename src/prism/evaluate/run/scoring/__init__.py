"""Scoring that needs care: code that models wrote, and judges that are asked over the network."""
