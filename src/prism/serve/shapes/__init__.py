"""The shapes that the API answers with; no code of the service, so that a client of it starts quickly."""
