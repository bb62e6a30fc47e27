"""Mutants of a module, and whether tests notice them."""
