"""SPANS of a diagnosed job."""
