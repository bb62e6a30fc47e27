"""Checkpoints as frameworks write them: their kinds, whether they are complete, and conversion to Hugging Face."""
