"""Checkpoints for trainers that know nothing of Prism, through their own hooks: `prism supervise --checkpoint auto`.

`site/sitecustomize.py` is put on the job's path. It imports nothing until the job imports a trainer that is known here.
"""
