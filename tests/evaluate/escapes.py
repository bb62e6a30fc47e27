"""Programs that try to get out of the sandbox, and end without an error only if they do, or to forge their verdict."""

from __future__ import annotations

_CALL = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def call(x86, arm, *args):
    return libc.syscall(x86 if X86 else arm, *args)
"""

# What {secret}, {port}, {name}, {pid} and {marker} mean is up to the test; all exist on the host.
ESCAPES = {
    # files of the host
    "read a file that everybody may read": "open({secret!r}).read()",
    "read /etc/passwd": "open('/etc/passwd').read()",
    "read /etc/shadow": "open('/etc/shadow').read()",
    "list the homes": "import os\nassert os.listdir('/home') or True\nassert [n for n in os.listdir('/root') if n != '.pyenv']",
    "reach the host through /proc/1/root": "import os\nassert os.path.exists('/proc/1/root' + {secret!r})",
    "reach the host through its working folder": "import os\nos.chdir('/proc/1/cwd')\nos.chdir('..')\nopen('.' + {secret!r}).read()",
    "reach the host through a dangling symlink": "import os\nos.symlink({secret!r}, '/tmp/link')\nopen('/tmp/link').read()",
    "write into the system": "open('/usr/bin/{marker}', 'w').write('x')",
    "write into the interpreter's packages": "import os, sys\nopen(os.path.dirname(os.__file__) + '/{marker}.py', 'w').write('x')",
    "write into the root": "open('/{marker}', 'w').write('x')",
    "write into /dev": "open('/dev/{marker}', 'w').write('x')",
    "make the system writable again": _CALL + "assert libc.mount(None, b'/usr', None, 4096 | 32, None) == 0",
    "mount a file system": _CALL + "assert libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None) == 0",
    "unmount /proc": _CALL + "assert libc.umount2(b'/proc', 2) == 0",
    "change the root": "import os\nos.chroot('/tmp')",
    "open a file by its handle": _CALL
    + "done = call(304, 265, -100, b'x' * 64, 0) >= 0 or ctypes.get_errno() != 1\nassert done",
    "make a device": "import os, stat\nos.mknod('/tmp/disk', 0o666 | stat.S_IFBLK, os.makedev(8, 0))",
    # processes of the host
    "see the processes of the host": "import os\nassert {pid} in [int(n) for n in os.listdir('/proc') if n.isdigit()] and 'pytest' in open('/proc/{pid}/cmdline').read()",
    "read the command lines of others": "import os\nlines = ''\nfor n in os.listdir('/proc'):\n    if n.isdigit() and int(n) != os.getpid():\n        lines += open('/proc/%s/cmdline' % n).read()\nassert 'pytest' in lines or '{marker}' in lines",
    "signal a process of the host": "import os\nos.kill({pid}, 0)",
    "outlive the run": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(4217)\n    os._exit(0)\nos.wait()\nassert False",
    "trace a process": _CALL + "assert call(101, 117, 16, os.getppid(), 0, 0) == 0",
    "read the memory of the first process": "open('/proc/1/mem', 'rb').read(1)",
    "write the memory of the first process": "open('/proc/1/mem', 'r+b').write(b'x')",
    "read the variables of the first process": "assert open('/proc/1/environ').read() is not None",
    "find variables of ours": "import os\nassert '{marker}' in str(os.environ)",
    "take the descriptors of the first process": "import os\nassert os.listdir('/proc/1/fd')",
    # networks and what namespaces do not cover
    "reach a server of this machine": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)",
    "reach another machine": "import socket\nsocket.create_connection(('192.0.2.1', 80), 2)",
    "reach an abstract socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{name}')",
    "open a socket to the hypervisor": "import socket\nsocket.socket(40, socket.SOCK_STREAM)",
    "talk to the kernel by netlink": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "set the network up": "import fcntl, socket, struct\nfcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))",
    "use memory shared with the host": "assert open('/dev/shm/{marker}').read()",
    # privileges and kernel interfaces
    "become root": "import os\nos.setuid(0)",
    "become root in another user namespace": _CALL + "assert libc.unshare(0x10000000) == 0",
    "make a namespace by clone": _CALL + "assert call(56, 220, 0x10000000 | 17, 0, 0, 0, 0) >= 0",
    "join a namespace": _CALL + "assert libc.setns(os.open('/proc/1/ns/mnt', 0), 0) == 0",
    "load a program into the kernel": _CALL
    + "done = call(321, 280, 5, b'x' * 128, 128) >= 0 or ctypes.get_errno() != 1\nassert done",
    "use io_uring": _CALL + "assert call(425, 425, 4, ctypes.create_string_buffer(248)) >= 0",
    "watch the kernel": _CALL
    + "done = call(298, 241, b'x' * 128, 0, -1, -1, 0) >= 0 or ctypes.get_errno() != 1\nassert done",
    "read the kernel's keys": _CALL + "assert call(250, 219, 0, -3, 1) >= 0",
    "set the clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, time.time())",
    "name the machine": "import socket\nsocket.sethostname('{marker}')",
    "write to the kernel's settings": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    # quotas
    "fill the disk with one file": "open('/tmp/x', 'wb').write(b'0' * (2 << 20))",
    "fill the disk with many files": "for i in range(64):\n    open('/tmp/%d' % i, 'wb').write(b'0' * (1 << 20))",
    "fill shared memory": "for i in range(64):\n    open('/dev/shm/%d' % i, 'wb').write(b'0' * (1 << 20))",
    "hide memory in a memory file": "import os\nfd = os.memfd_create('x')\nos.write(fd, b'0' * 4096)",
    "take more memory than one process may": "x = bytearray(1 << 30)",
    "take more memory in many processes": "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(os.urandom(1 << 20) * 200)\n        time.sleep(60)\ntime.sleep(4)",
    "take all processes": "import os, time\nn = 0\nwhile n < 200:\n    if os.fork() == 0:\n        time.sleep(60)\n    n += 1",
    "write without end": "import sys\nwhile True:\n    sys.stderr.write('x' * 65536)",
    "run without end": "while True:\n    pass",
    "sleep without end": "import time\ntime.sleep(4217)",
}

# Each is followed by a function that is wrong: to pass its test is to forge.
FORGERIES = {
    "leave before the test": "import sys\nsys.exit(0)",
    "leave hard before the test": "import os\nos._exit(0)",
    "leave with every code": "import os\nfor code in range(256):\n    if os.fork() == 0:\n        os._exit(code)\nos._exit(0)",
    "find the code in the arguments": "import os, sys\nwords = open('/proc/self/cmdline').read().split('\\0') + sys.orig_argv\nnumbers = [int(w) for w in words if w.isdigit()]\nos._exit(numbers[-1] if numbers else 0)",
    "find the code in the parent's arguments": "import os\nwords = open('/proc/%d/cmdline' % os.getppid()).read().split('\\0')\nnumbers = [int(w) for w in words if w.isdigit()]\nos._exit(numbers[-1] if numbers else 0)",
    "find the code in a frame": "import os, sys\nframe, found = sys._getframe(), [0]\nwhile frame:\n    found += [v for v in frame.f_locals.values() if type(v) is int]\n    frame = frame.f_back\nos._exit(found[-1] & 255)",
    "find the code in the heap": "import gc, os\nfound = [v for o in gc.get_objects() if isinstance(o, dict) for v in list(o.values()) if type(v) is int and 64 <= v < 124]\nos._exit(found[-1] if found else 0)",
    "write a verdict to every descriptor": 'import json, os\nfor fd in range(1024):\n    for text in (b\'{"ending": "passed", "text": ""}\', b\'{"value": true, "args": {"list": []}}\\n\', b\'passed\\n\', b\'\\0\'):\n        try:\n            os.write(fd, text)\n        except OSError:\n            pass\nos._exit(0)',
    "write a verdict to the first process": 'open(\'/proc/1/fd/1\', \'w\').write(\'{"ending": "passed", "text": ""}\')\nimport os\nos._exit(0)',
    "kill the first process": "import os, signal\nos.kill(1, signal.SIGKILL)\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(0)",
    "kill all others": "import os, signal\nfor n in os.listdir('/proc'):\n    if n.isdigit() and int(n) != os.getpid():\n        try:\n            os.kill(int(n), signal.SIGKILL)\n        except OSError:\n            pass\nos._exit(0)",
    "stop all others": "import os, signal\nos.kill(-1, signal.SIGSTOP)\nos._exit(0)",
    "take assertions away": "import builtins\nclass Quiet(BaseException):\n    pass\nbuiltins.AssertionError = AssertionError = Quiet",
    "turn optimisation on": 'import sys\nsys.flags = None\n__debug__ if True else None\nexec(\'import os; os.environ["PYTHONOPTIMIZE"] = "2"\')',
    "handle the exception": "import os, sys\nsys.excepthook = lambda *a: os._exit(0)",
    "leave at the end": "import atexit, os\natexit.register(os._exit, 0)",
    "leave from a trace": "import os, sys\nsys.settrace(lambda *a: os._exit(0))\ndef f():\n    pass\nf()",
    "leave from a thread": "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), os._exit(0))).start()\ntime.sleep(1)",
    "leave on an alarm": "import os, signal, time\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.1)\ntime.sleep(1)",
    "replace exec and compile": "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: 'pass'",
    "replace the way out": "import os\nreal = os._exit\nos._exit = lambda code: real(0)\nimport sys\nsys.exit = lambda code=0: real(0)",
    "read the rest of the task": "import os, sys\ntext = os.read(0, 1 << 20)\nos._exit(0 if b'raise' not in text else 1)",
    "equal everything": "class Any:\n    __eq__ = lambda s, o: True\nimport builtins\nbuiltins.int = Any",
    "return what equals everything": "class Same:\n    __eq__ = __lt__ = __gt__ = lambda s, o: True\n    __sub__ = lambda s, o: 0.0\n    __abs__ = lambda s: s\nclass str_(str):\n    pass",
    "redefine what tests use": "abs = len = sorted = round = lambda *a: 0\nisinstance = lambda *a: True",
    "leave a flag for another run": "import os\nif os.path.exists('/tmp/flag'):\n    os._exit(0)\nopen('/tmp/flag', 'w').close()",
    "write into the checker": "import os\nfor n in os.listdir('/proc'):\n    if n.isdigit() and int(n) not in (1, os.getpid()):\n        try:\n            open('/proc/%s/mem' % n, 'r+b').write(b'x')\n            os._exit(0)\n        except OSError:\n            pass",
}
