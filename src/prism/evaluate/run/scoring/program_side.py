"""The process of a program that a model wrote: it runs, then answers its test. Sent as text, after that of `wire`."""

import builtins
import os
import sys
import types
from typing import Any

from prism.evaluate.run.scoring.wire import Peer  # cut out when sent


def take() -> str:
    """The next text on stdin, and no byte more."""
    left, parts = int(os.read(0, 12)), []
    while left:
        parts.append(os.read(0, min(left, 65536)))
        left -= len(parts[-1])
    return b"".join(parts).decode(errors="surrogatepass")


class Program(Peer):
    """What the program left, by name."""

    def __init__(self, space: dict[str, Any]) -> None:
        super().__init__(os.fdopen(3, "r"), os.fdopen(4, "w"), trusts=True)
        self.space = space

    def look(self, name: str) -> Any:
        """A module is told by its name alone; what is not there, by a number that no name has."""
        if name not in self.space:
            return ("missing", None)
        value = self.space[name]
        return ("module", value.__name__) if isinstance(value, types.ModuleType) else ("value", value)


def main() -> None:
    """Run the program on stdin, once the process of the test has closed itself to it, and answer."""
    sys.argv = ["program"]
    module = types.ModuleType("program")
    sys.modules["program"] = module
    peer = Program(module.__dict__)
    print("ready", file=peer.writer, flush=True)
    peer.reader.readline()
    builtins.input = lambda text="": peer.ask({"op": "input", "text": str(text)})
    exec(compile(take(), "program", "exec"), module.__dict__)
    peer.serve()


if __name__ == "__main__":
    main()
