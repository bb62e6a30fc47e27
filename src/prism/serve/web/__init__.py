"""The service: pages, API and metrics over HTTP, and what keeps them safe."""
