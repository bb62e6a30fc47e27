"""The one place that holds Prism's version."""

__version__ = "0.3.0"
