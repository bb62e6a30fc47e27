"""Restarts inside living processes: when a rank dies the others go on in theirs, and a booted spare takes its place.

python -m prism.recover.checkpoint.inplace --ranks 8 --spares 1 -- train.py

def train(place: Place) -> None: ...      # restores, trains, saves; called again after every failure
run_in_place(train)
"""

from prism.recover.checkpoint.inplace.member import Place, run_in_place

__all__ = ["Place", "run_in_place"]
