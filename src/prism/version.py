"""The one place that holds Prism's version."""

__version__ = "0.1.0"
