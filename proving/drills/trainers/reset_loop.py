"""A loop whose first attempt ends with a lost connection, just after a save failed because Python was ending."""

import sys

from prism.recover import Progress


def main() -> None:
    progress = Progress.from_environment(0)
    for step in range(1, 21):
        progress.step(step, loss=1.0 / step)
    if progress.orders.attempt == 1:
        why = "RuntimeError: cannot schedule new futures after interpreter shutdown"
        progress.event("save_failed", step=20, why=why)
        raise RuntimeError("[1]: recvValue failed on SocketImpl(fd=62): Connection reset by peer")
    sys.stdout.write("trained\n")


if __name__ == "__main__":
    main()
