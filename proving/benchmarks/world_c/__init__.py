"""Third independent generator of flow captures of training clusters: see README.md. It imports nothing of prism."""
