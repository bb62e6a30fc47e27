"""Walls around a process: namespaces, a read-only view of the system, a system call filter. Standard library only.

This file is also sent as text to an interpreter that cannot read our folder, so it imports nothing of Prism.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
from typing import Any

Step = tuple[int, int, int, int]  # code, jump if true, jump if false, value

NOBODY = 65534
_NEW_USER, _NEW_MOUNT, _NEW_PID, _NEW_NET = 0x10000000, 0x00020000, 0x20000000, 0x40000000  # linux/sched.h
_NEW_IPC, _NEW_HOST, _NEW_CGROUP = 0x08000000, 0x04000000, 0x02000000
_NAMESPACES = _NEW_MOUNT | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_HOST | _NEW_CGROUP
_CLONE_ANY_NAMESPACE = _NAMESPACES | _NEW_USER | 0x80  # the last is a time namespace
_PDEATHSIG, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVS = 1, 4, 22, 38  # linux/prctl.h
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_ATTR_RDONLY_NOSUID_NODEV = 1 | 2 | 4  # MOUNT_ATTR_*
_RECURSIVE = 0x8000
_DEVICES = ("null", "zero", "full", "random", "urandom")
_MORE_INODES = 4096

libc = ctypes.CDLL(None, use_errno=True)


def enter(view: dict[str, Any], root: str) -> None:
    """Leave the host in the first process of new namespaces; only that process returns, and the caller reaps it.

    `root` is an empty folder to build the view in; `view` names what is seen: "folders", "tmp_bytes".
    """
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    uid, gid = os.getuid(), os.getgid()
    is_root = uid == 0
    _check(libc.unshare(_NAMESPACES | (0 if is_root else _NEW_USER)), "unshare")
    if not is_root:
        _map_user(uid, gid)
    first = os.fork()
    if first:
        _pass_on_exit(first)
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _build_view(view, root)
    if is_root:  # what root could do went into the view; what runs in it is nobody, in a user namespace of its own
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        libc.prctl(_DUMPABLE, 1, 0, 0, 0)  # a change of user closes our own files in /proc to us
        _check(libc.unshare(_NEW_USER), "unshare user")
        _map_user(NOBODY, NOBODY)
    _drop_capabilities()


def hide_from_peers() -> None:
    """Keep processes of the same user from tracing this one, and from its memory and descriptors in /proc."""
    libc.prctl(_DUMPABLE, 0, 0, 0, 0)


def limit(limits: dict[str, int]) -> None:
    """Set what one process may use, and forbid the system calls that a program has no business with."""
    for name, value in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(name, (value, value))
    filter_calls()


def _check(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _map_user(uid: int, gid: int) -> None:
    for path, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {uid} 1"),
        ("gid_map", f"{NOBODY} {gid} 1"),
    ):
        with open(f"/proc/self/{path}", "w") as handle:
            handle.write(text)


def _pass_on_exit(child: int) -> None:
    """Stay outside as the parent of the first process, and end as it does."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _build_view(view: dict[str, Any], root: str) -> None:
    """Make the root: system folders bound read-only, a /proc of its own, a few devices, a small /tmp."""
    _mount("none", "/", None, _REC | _PRIVATE, None)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    # These first: an interpreter may lie under /tmp, and is bound over it.
    for path, part in (("tmp", 3), ("dev/shm", 1)):
        os.makedirs(f"{root}/{path}", exist_ok=True)
        size = max(4096, view["tmp_bytes"] * part // 4)
        options = f"size={size},nr_inodes={_MORE_INODES},mode=1777"
        _mount("tmpfs", f"{root}/{path}", "tmpfs", _NOSUID | _NODEV, options)
    for source in view["folders"]:
        target = root + source
        if os.path.islink(source):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.readlink(source), target)
        elif os.path.exists(source):
            _bind(source, target, os.path.isdir(source))
    os.makedirs(f"{root}/proc", exist_ok=True)
    _mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC, None)
    for name in _DEVICES:
        _bind(f"/dev/{name}", f"{root}/dev/{name}", False, read_only=False)
    os.chdir(root)
    _check(libc.syscall(_number("pivot_root"), b".", b"."), "pivot_root")
    _check(libc.umount2(b".", _DETACH), "umount")
    _mount("none", "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV, None)
    os.chdir("/tmp")


def _bind(source: str, target: str, is_folder: bool, read_only: bool = True) -> None:
    if is_folder:
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(source, target, None, _BIND | _REC, None)
    if read_only:
        attributes = struct.pack("=QQQQ", _ATTR_RDONLY_NOSUID_NODEV, 0, 0, 0)
        status = libc.syscall(_number("mount_setattr"), -100, target.encode(), _RECURSIVE, attributes, len(attributes))
        _check(status, f"make {source} read-only")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    encoded = [None if word is None else word.encode() for word in (source, target, kind, options)]
    _check(libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def _drop_capabilities() -> None:
    for number in range(64):
        libc.prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP; those beyond the last are refused
    libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
    libc.capset(struct.pack("=II", 0x20080522, 0), struct.pack("=6I", 0, 0, 0, 0, 0, 0))
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)


# -- the system call filter

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_* and the column below
# Numbers on x86_64 and on aarch64. Namespaces and missing capabilities stop most of these already; the filter stands
# in front of the kernel's code for them. What could hold memory that no limit counts (memfd, SysV) is refused too.
_CALLS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "userfaultfd": (323, 282),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "personality": (135, 92), "vhangup": (153, 58), "syslog": (103, 116), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186), "fanotify_init": (300, 262),
    "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip
_CLONE, _SOCKET, _SOCKETPAIR, _IOCTL = (56, 220), (41, 198), (53, 199), (16, 29)
_CLONE3 = 435
_FAMILIES = (1, 2, 10)  # unix, IPv4, IPv6: those of a network namespace. A vsock would reach the hypervisor.
_TERMINAL_INPUT = 0x5412  # TIOCSTI writes into the terminal of the user who started Prism
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # linux/filter.h
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST, _AT_SECOND = 0, 4, 16, 24  # struct seccomp_data


def filter_calls() -> None:
    """Refuse system calls for this process and all that it starts."""
    program = make_filter(platform.machine())
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    _check(libc.prctl(_SECCOMP, 2, head, 0, 0), "seccomp")


def make_filter(machine: str) -> bytes:
    """The filter as the kernel reads it: one instruction of eight bytes after the other."""
    if machine not in _ARCHITECTURES:
        raise OSError(38, f"no system call filter for {machine}")
    audit, column = _ARCHITECTURES[machine]
    steps: list[Step] = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000),
        (_RETURN, 0, 0, _KILL),  # the x32 variants
    ]
    refused = [(numbers[column], _EPERM) for numbers in _CALLS.values()]
    for number, error in [*refused, (_CLONE3, _ENOSYS)]:  # clone3 hides its flags; libraries fall back to clone
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | error)]
    steps += _where(_CLONE[column], _AT_FIRST, [(_ANY_BIT, 0, 1, _CLONE_ANY_NAMESPACE), (_RETURN, 0, 0, _REFUSE | 1)])
    steps += _where(_IOCTL[column], _AT_SECOND, [(_EQUAL, 0, 1, _TERMINAL_INPUT), (_RETURN, 0, 0, _REFUSE | 1)])
    for number in (_SOCKET[column], _SOCKETPAIR[column]):
        known: list[Step] = [(_EQUAL, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)]
        steps += _where(number, _AT_FIRST, [*known, (_RETURN, 0, 0, _REFUSE | _EAFNOSUPPORT)])
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _where(number: int, argument: int, checks: list[Step]) -> list[Step]:
    """Checks of one argument of one call; the number is loaded again behind them."""
    body = [(_LOAD, 0, 0, argument), *checks, (_LOAD, 0, 0, _AT_NUMBER)]
    return [(_EQUAL, 0, len(body), number), *body]


def _number(name: str) -> int:
    return _CALLS[name][_ARCHITECTURES[platform.machine()][1]]
