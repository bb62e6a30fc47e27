"""What runs inside the sandbox: takes limits, leaves the network and its privileges behind, then runs its stdin."""

import ctypes
import os
import resource
import signal
import sys

TIME_CODE = 124
_NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x08000000  # user, network, process, IPC (linux/sched.h)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
_NOBODY = 65534


def enter(libc: ctypes.CDLL, allow_network: bool) -> None:
    """Become nobody in namespaces of its own: no devices but a dead loopback, no processes but its own."""
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    if libc.unshare(_NAMESPACES) and not allow_network:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def limit(cpu_s: int, memory_bytes: int, file_bytes: int, processes: int) -> None:
    """Set what the program may use."""
    for name, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (value, value))


def main() -> None:
    """Run the program on stdin in a child that dies with this process."""
    cpu_s, memory_bytes, file_bytes, processes, allow_network, done = (int(word) for word in sys.argv[1:])
    program = sys.stdin.read()
    libc = ctypes.CDLL(None, use_errno=True)
    enter(libc, bool(allow_network))
    child = os.fork()
    if child == 0:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        limit(cpu_s, memory_bytes, file_bytes, processes)
        sys.argv = ["program"]
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        os._exit(done)  # reached only by a program that did not end itself before its test
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        out_of_time = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        sys.stderr.write(f"ended by signal {os.WTERMSIG(status)}\n")
        os._exit(TIME_CODE if out_of_time else 1)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
