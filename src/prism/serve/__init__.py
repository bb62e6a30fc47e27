"""A read-only dashboard, API and metrics over what the other commands wrote."""

from prism.serve.start import ServeConfig, serve

__all__ = ["ServeConfig", "serve"]
