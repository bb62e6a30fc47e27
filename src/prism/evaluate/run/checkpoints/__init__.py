"""Checkpoints as frameworks write them: told apart, checked for being whole, converted where need be."""
