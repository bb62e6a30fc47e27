"""The `prism` command: one file per command, each parses, calls one library function and renders."""
