"""The first half of a command dataset: outputs of samples `first` to `last` of a model, one JSON object per line.

A stand-in for your own inference: it guesses the number of letters of a word from the model's size on disk.
"""

import json
import sys
from pathlib import Path

model, data, first, last, output = sys.argv[1:]
size = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
rows = [json.loads(line) for line in Path(data).read_text().splitlines()][int(first) : int(last)]
with Path(output).open("w") as handle:
    for row in rows:
        handle.write(json.dumps({**row, "guess": size % 7 + 3}) + "\n")
