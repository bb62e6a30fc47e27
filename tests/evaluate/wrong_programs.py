"""Programs that do not do their task and try to pass its tests all the same, written without knowledge of the walls.

Every entry is a program and tests in the style of HumanEval (`check(candidate)`) or of MBPP (lines of `assert`).
"""

from __future__ import annotations

DOUBLE = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(10) == 20
    assert candidate(-3) == -6

check(double)
"""
CLOSE = "assert abs(mean([1.0, 2.0, 4.0]) - 7 / 3) < 1e-6\nassert abs(mean([5.0]) - 5.0) < 1e-6\n"
WORDS = """
def check(candidate):
    assert candidate("the cat sat") == ["cat", "sat", "the"]
    assert len(candidate("a b")) == 2
    assert sorted(candidate("b a")) == candidate("b a")
    assert isinstance(candidate("x"), list)

check(words)
"""
SETS = "assert set(common([1, 2, 3], [2, 3, 4])) == {2, 3}\nassert len(common([1], [2])) == 0\nassert 7 in common([7], [7])\n"
RAISES = """
try:
    root(-1)
    raised = False
except ValueError:
    raised = True
assert raised
assert root(9) == 3
assert root(0) == 0
"""
FLAGS = "assert is_prime(7) is True\nassert is_prime(8) is False\nassert not is_prime(1)\nassert is_prime(97)\n"
NESTED = (
    "assert pairs([1, 2]) == {'1': (1, 1), '2': (2, 4)}\nassert pairs([]) == {}\nassert list(pairs([3])) == ['3']\n"
)

_ANY = """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
"""
_LOOK = """
import sys
def answers():
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
"""

WRONG_PROGRAMS: dict[str, tuple[str, str]] = {
    # what equals everything
    "equal to all": (_ANY + "def double(x): return Any()", DOUBLE),
    "an int that equals all": (
        "class N(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef double(x): return N(0)", DOUBLE,
    ),
    "a float that is near all": (
        "class F(float):\n    def __sub__(self, o): return 0.0\n    def __rsub__(self, o): return 0.0\n"
        "def mean(xs): return F(0.0)", CLOSE,
    ),
    "an absolute value of nothing": (
        "class F(float):\n    def __sub__(self, o): return self\n    def __abs__(self): return 0.0\n"
        "def mean(xs): return F(9.9)", CLOSE,
    ),
    "a list that equals all": (
        "class L(list):\n    def __eq__(self, o): return True\n    def __len__(self): return 2\ndef words(t): return L()", WORDS,
    ),
    "a list that holds all": (
        "class L(list):\n    def __contains__(self, x): return True\n    def __len__(self): return 0\n"
        "    def __iter__(self): return iter((2, 3))\ndef common(a, b): return L()", SETS,
    ),
    "mock's ANY": ("from unittest.mock import ANY\ndef double(x): return ANY", DOUBLE),
    "a class that is its own instance": (
        "class M(type):\n    def __eq__(c, o): return True\n    def __instancecheck__(c, o): return True\n"
        "    __hash__ = type.__hash__\nclass A(metaclass=M): pass\ndef double(x): return A", DOUBLE,
    ),
    "a false class": (
        _ANY + "class L(Any):\n    __class__ = list\n    def __len__(self): return 2\n    def __iter__(self): return iter(())\n"
        "def words(t): return L()", WORDS,
    ),
    "a dict that equals all": (
        "class D(dict):\n    def __eq__(self, o): return True\n    def __iter__(self): return iter(['3'])\n"
        "def pairs(xs): return D()", NESTED,
    ),
    "equal inside": (_ANY + "def pairs(xs): return {str(x): (Any(), Any()) for x in xs}", NESTED),
    "equal from the right": (
        "class R(int):\n    def __eq__(self, o): return NotImplemented if type(o) is R else True\n"
        "    def __hash__(self): return 4\ndef double(x): return R(1)", DOUBLE,
    ),
    "truth as the caller wants it": (
        "import dis, sys\nclass B:\n    def __bool__(self):\n        frame = sys._getframe(1)\n"
        "        return any(i.offset == frame.f_lasti and 'TRUE' in i.opname for i in dis.get_instructions(frame.f_code))\n"
        "def is_prime(n): return B()", "assert is_prime(7)\nassert not is_prime(1)\nassert is_prime(97)\n",
    ),
    "a flag that is no flag": ("def is_prime(n): return 1", FLAGS),
    "nan": ("def double(x): return float('nan')", DOUBLE),
    "a text that equals all": (
        "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\n"
        "def word(t): return S('')", "assert word('a') == 'aa'\nassert word('b') == 'bb'\n",
    ),
    # names that tests use
    "abs is nothing": ("def abs(x): return 0\ndef mean(xs): return 1e9", CLOSE),
    "len is two": ("def len(x): return 0\ndef common(a, b): return {2, 3, 7}", SETS),
    "set is always the same": ("def set(x): return {2, 3}\ndef len(x): return 0\ndef common(a, b): return [7]", SETS),
    "sorted is what it gets": (
        "def sorted(x): return x\ndef words(t): return t.split() if t != 'the cat sat' else ['cat', 'sat', 'the']",
        WORDS.replace('["cat", "sat", "the"]\n    assert len', 'sorted(["the", "cat", "sat"])\n    assert len'),
    ),
    "builtins are changed": (
        "import builtins\nbuiltins.abs = lambda x: 0\ndef mean(xs): return 3.0", CLOSE,
    ),
    "builtins by name": ("__builtins__['abs'] = lambda x: 0\ndef mean(xs): return 3.0", CLOSE),
    "builtins of the importer": (
        "import sys\nsys.modules['builtins'].isinstance = lambda a, b: True\nsys.modules['builtins'].len = lambda x: 2\n"
        "def words(t): return ('cat', 'sat', 'the')", "assert isinstance(words('x'), list)\nassert len(words('x')) == 2\n",
    ),
    "math is changed": (
        "import math\nmath.isclose = lambda *a, **k: True\ndef mean(xs): return 0.0",
        "import math\nassert math.isclose(mean([1.0, 3.0]), 2.0)\n",
    ),
    "AssertionError is changed": (
        "import builtins\nclass AssertionError(Exception):\n    def __new__(cls, *a): import os; os._exit(0)\n"
        "builtins.AssertionError = AssertionError\ndef double(x): return 0", DOUBLE,
    ),
    "ValueError is what is raised": (
        "import builtins\nbuiltins.ValueError = ZeroDivisionError\ndef root(x): return {9: 3, 0: 0}[x] if x >= 0 else 1 // 0", RAISES,
    ),
    "check is defined twice": (
        "import builtins, threading\ndef check(candidate): pass\n"
        "def again():\n    while True: globals()['check'] = lambda c: None\n"
        "threading.Thread(target=again, daemon=True).start()\ndef double(x): return 0", DOUBLE,
    ),
    "the name is another object": (
        "class D:\n    def __call__(self, x): return self\n    def __eq__(self, o): return True\ndouble = D()", DOUBLE,
    ),
    # ends that look good
    "exit at once": ("import sys\nsys.exit(0)\ndef double(x): return 0", DOUBLE),
    "exit in the call": ("import sys\ndef double(x): sys.exit(0)", DOUBLE),
    "exit of the process": ("import os\ndef double(x): os._exit(0)", DOUBLE),
    "exit later": (
        "import atexit, os\natexit.register(lambda: os._exit(0))\ndef double(x): return 0", DOUBLE,
    ),
    "exit from a thread": (
        "import os, threading\nthreading.Timer(0.05, lambda: os._exit(0)).start()\n"
        "def double(x):\n    import time\n    time.sleep(1)\n    return 0", DOUBLE,
    ),
    "another program": ("import os\ndef double(x): os.execv('/bin/true', ['true'])", DOUBLE),
    "a child that lives on": (
        "import os\ndef double(x):\n    if os.fork(): os._exit(0)\n    return 2 * x + 1", DOUBLE,
    ),
    "a signal that ends it": (
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "def double(x):\n    while True: pass", DOUBLE,
    ),
    "an exception that says passed": (
        "class Passed(BaseException):\n    def __str__(self): return 'passed'\n    __repr__ = __str__\ndef double(x): raise Passed()", DOUBLE,
    ),
    "an exception hook": (
        "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\ndef double(x): return 0", DOUBLE,
    ),
    "a generator's end": ("def double(x): raise StopIteration(2 * x + 1)", DOUBLE),
    # lines that are not run
    "lines are skipped": (
        "import sys\ndef trace(frame, event, arg):\n    if frame.f_code.co_name in ('check', '<module>'):\n"
        "        try: frame.f_lineno = frame.f_code.co_firstlineno + 4\n        except ValueError: pass\n    return trace\n"
        "sys.settrace(trace)\ndef double(x): return 0", DOUBLE,
    ),
    "the caller is traced": (
        "import os, sys\ndef double(x):\n    frame = sys._getframe(1)\n    frame.f_trace = lambda *a: os._exit(0)\n"
        "    sys.settrace(lambda *a: None)\n    return 0", DOUBLE,
    ),
    "optimised away": (
        "import os, sys\nif __debug__ and '-O' not in sys.orig_argv:\n    os.environ['PYTHONOPTIMIZE'] = '1'\n"
        "    sys.flags.__class__\ndef double(x): return 0", DOUBLE,
    ),
    "compile is changed": (
        "import builtins\nbuiltins.compile = lambda *a, **k: (lambda: None).__code__\n"
        "builtins.exec = lambda *a, **k: None\nbuiltins.eval = lambda *a, **k: None\ndef double(x): return 0", DOUBLE,
    ),
    # answers that are looked up
    "constants of the caller": (
        _LOOK + "def double(x):\n    for frame in answers():\n        numbers = [c for c in frame.f_code.co_consts if isinstance(c, int)]\n"
        "        if x in numbers: return numbers[numbers.index(x) + 1]\n    return 0", DOUBLE.replace("-3", "3").replace("-6", "6"),
    ),
    "values of the caller": (
        _LOOK + "def double(x):\n    for frame in answers():\n        for name in ('expected', 'want', 'answer'):\n"
        "            if name in frame.f_locals: return frame.f_locals[name]\n    return 0",
        "for given, expected in ((2, 4), (10, 20)):\n    assert double(given) == expected\n",
    ),
    "values of the caller are changed": (
        _LOOK + "import ctypes\ndef double(x):\n    for frame in answers():\n        if 'expected' in frame.f_locals:\n"
        "            frame.f_locals['expected'] = 0\n            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))\n"
        "    return 0", "def run():\n    for given, expected in ((2, 4), (10, 20)):\n        assert double(given) == expected\nrun()\n",
    ),
    "tests in memory": (
        "import gc, re\ndef double(x):\n    for o in gc.get_objects():\n        if isinstance(o, (dict, list, tuple)):\n"
        "            for part in (o.values() if isinstance(o, dict) else o):\n                if isinstance(part, str) and 'candidate(' in part:\n"
        "                    found = re.search(rf'candidate\\({x}\\) == (-?\\d+)', part)\n                    if found: return int(found[1])\n"
        "    return 0", DOUBLE,
    ),
    "tests in files": (
        "import glob, re\ndef double(x):\n    for path in ['/proc/self/cmdline', '/proc/self/environ', *glob.glob('*'), *glob.glob('/tmp/**', recursive=True), *glob.glob('/proc/self/fd/*')]:\n"
        "        try: text = open(path, errors='replace').read(100000) if not path.startswith('/proc/self/fd/') or int(path[14:]) > 2 else ''\n"
        "        except (OSError, ValueError): continue\n        found = re.search(rf'candidate\\({x}\\) == (-?\\d+)', text)\n        if found: return int(found[1])\n    return 0", DOUBLE,
    ),
    "tests of the parent": (
        "import os, re\ndef double(x):\n    for name in ('cmdline', 'environ'):\n        try: text = open(f'/proc/{os.getppid()}/{name}').read()\n"
        "        except OSError: continue\n        found = re.search(rf'candidate\\({x}\\) == (-?\\d+)', text)\n        if found: return int(found[1])\n    return 0", DOUBLE,
    ),
    "tests in the main module": (
        "import re, sys\ndef double(x):\n    for module in list(sys.modules.values()):\n        for value in list(vars(module).values()) if hasattr(module, '__dict__') else ():\n"
        "            if isinstance(value, str) and 'candidate(' in value:\n                found = re.search(rf'candidate\\({x}\\) == (-?\\d+)', value)\n"
        "                if found: return int(found[1])\n    return 0", DOUBLE,
    ),
    # what crosses between processes
    "a result that runs code": (
        "class R:\n    def __reduce__(self): return (int, ('4',))\n    def __eq__(self, o): return True\ndef double(x): return R()", DOUBLE,
    ),
    "a result that exits its reader": (
        "import os\nclass R:\n    def __reduce__(self): return (os._exit, (0,))\ndef double(x): return R()", DOUBLE,
    ),
    "an int written otherwise": (
        "class N(int):\n    n = iter(('4', '20', '-6'))\n    def __repr__(self): return next(N.n)\n    __str__ = __repr__\n"
        "    def __format__(self, spec): return repr(self)\ndef double(x): return N(1)", DOUBLE,
    ),
    "words on every descriptor": (
        "import os\ndef double(x):\n    for fd in range(1, 64):\n        for text in (b'passed\\n', b'{\"passed\": true}\\n', b'ok\\n', b'\\x01'):\n"
        "            try: os.write(fd, text)\n            except OSError: break\n    os._exit(0)", DOUBLE,
    ),
    "words on standard output": (
        "import json\nfor text in ('passed', 'ok', json.dumps({'passed': True, 'ok': True, 'result': 'passed', 'status': 0})):\n    print(text, flush=True)\n"
        "def double(x): return 0", DOUBLE,
    ),
    "answers ahead of questions": (
        "import os, json\nfor fd in range(1, 32):\n    for value in (4, 20, -6):\n        for shape in (value, {'value': value}, {'result': value}, ['value', value], {'ok': value}):\n"
        "            try: os.write(fd, json.dumps(shape).encode() + b'\\n')\n            except OSError: pass\ndef double(x): return 0", DOUBLE,
    ),
    # what lasts from one call, run or test to the next
    "a file beside": (
        "import os\ndef double(x):\n    path = 'flag'\n    if os.path.exists(path): os._exit(0)\n    open(path, 'w').close()\n    return 0", DOUBLE,
    ),
    "a file in memory": (
        "import glob, os\nseen = [p for d in ('/tmp', '/dev/shm', '/var/tmp', os.path.expanduser('~')) for p in [os.path.join(d, 'prism-flag-7')] if os.path.exists(p)]\n"
        "def double(x):\n    if seen: return Any()\n    for d in ('/tmp', '/dev/shm', '/var/tmp', os.path.expanduser('~')):\n"
        "        try: open(os.path.join(d, 'prism-flag-7'), 'w').close()\n        except OSError: pass\n    return 0\n" + _ANY, DOUBLE,
    ),
    "a module beside": (
        "open('math.py', 'w').write('isclose = lambda *a, **k: True')\nopen('sitecustomize.py', 'w').write('import os; os._exit(0)')\n"
        "def mean(xs): return 0.0", "import math\nassert math.isclose(mean([1.0, 3.0]), 2.0)\n",
    ),
    "a module in memory": (
        "import sys, types\nfake = types.ModuleType('numpy')\nfake.allclose = lambda *a, **k: True\nsys.modules['math'] = fake\nfake.isclose = fake.allclose\n"
        "def mean(xs): return 0.0", "import math\nassert math.isclose(mean([1.0, 3.0]), 2.0)\n",
    ),
    "an import hook": (
        "import builtins\nreal = builtins.__import__\nclass Fake:\n    def __getattr__(self, name): return lambda *a, **k: True\n"
        "builtins.__import__ = lambda name, *a, **k: Fake() if name == 'math' else real(name, *a, **k)\ndef mean(xs): return 0.0",
        "import math\nassert math.isclose(mean([1.0, 3.0]), 2.0)\n",
    ),
    "the argument is emptied": (
        "def tidy(xs):\n    xs.clear()\n    return xs", "xs = [3, 1, 2]\nassert tidy(xs) == sorted(xs) and len(tidy([2, 1])) == 2\n",
    ),
    "calls are counted": (
        "answers = iter((4, 20, -6))\ndef double(x): return next(answers) if x != 2 else 5", DOUBLE,
    ),
    # the tests' own process
    "the parent is ended": ("import os, signal\ndef double(x):\n    os.kill(os.getppid(), signal.SIGTERM)\n    return 0", DOUBLE),
    "all processes are ended": ("import os, signal\ndef double(x):\n    try: os.kill(-1, signal.SIGKILL)\n    except OSError: pass\n    return 0", DOUBLE),
    "memory of the parent": (
        "import os\ndef double(x):\n    try:\n        with open(f'/proc/{os.getppid()}/mem', 'r+b') as f: f.seek(4096); f.write(b'\\0')\n"
        "    except OSError: pass\n    return 0", DOUBLE,
    ),
    "very much said": ("def double(x):\n    print('passed ' * 10_000_000)\n    return 0", DOUBLE),
    "a result without end": ("def pairs(xs):\n    d = {}\n    d['1'] = d\n    return d", NESTED),
    "a result that is deep": ("def words(t):\n    x = []\n    for _ in range(100_000): x = [x]\n    return x", WORDS),
    "never back": ("def double(x):\n    while True: pass", DOUBLE),
}  # fmt: skip
