"""The service: pages, API and metrics over HTTP, and their protection."""
