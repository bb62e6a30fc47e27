"""Tasks in the manner of HumanEval and MBPP, each with a right program: whatever its test looks like, it must pass."""

from __future__ import annotations

from dataclasses import dataclass

# A program, and calls of it with what they give. The first name defined is what the task is about.
TASKS = {
    "add": ("def add(a, b):\n    return a + b", "add(2, 3) == 5; add(-1, 1) == 0; add('a', 'b') == 'ab'"),
    "evens": ("def evens(xs):\n    return [x for x in xs if x % 2 == 0]", "evens([1, 2, 4]) == [2, 4]; evens([]) == []"),
    "is_prime": ("def is_prime(n):\n    return n > 1 and all(n % i for i in range(2, int(n ** .5) + 1))", "is_prime(7); not is_prime(9); is_prime(2) is True"),
    "factorial": ("def factorial(n):\n    return 1 if n < 2 else n * factorial(n - 1)", "factorial(5) == 120; factorial(30) == 265252859812191058636308480000000"),
    "fib": ("def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a", "fib(10) == 55; fib(100) == 354224848179261915075"),
    "gcd": ("import math\ndef gcd(a, b):\n    return math.gcd(a, b)", "gcd(12, 18) == 6; gcd(7, 3) == 1"),
    "mean": ("def mean(xs):\n    return sum(xs) / len(xs)", "abs(mean([1.0, 2.0, 4.0]) - 7 / 3) < 1e-9; round(mean([1, 2]), 2) == 1.5"),
    "find_root": ("def find_root(f):\n    lo, hi = -10.0, 10.0\n    for _ in range(80):\n        mid = (lo + hi) / 2\n        lo, hi = (mid, hi) if f(lo) * f(mid) > 0 else (lo, mid)\n    return lo", "abs(find_root(lambda x: x - 3.5) - 3.5) < 1e-6"),
    "similar": ("def similar(a, b):\n    return tuple(set(a) & set(b))", "sorted(similar((3, 4, 5), (5, 7, 4))) == [4, 5]; set(similar((1,), (1,))) == {1}"),
    "count_words": ("from collections import Counter\ndef count_words(s):\n    return Counter(s.split())", "count_words('a b a') == {'a': 2, 'b': 1}; count_words('a a').most_common(1) == [('a', 2)]"),
    "group": ("from collections import defaultdict\ndef group(pairs):\n    d = defaultdict(list)\n    for k, v in pairs:\n        d[k].append(v)\n    return d", "group([('a', 1), ('a', 2)]) == {'a': [1, 2]}; len(group([])) == 0"),
    "largest": ("import heapq as hq\ndef largest(xs, n):\n    return hq.nlargest(n, xs)", "largest([5, 1, 9], 2) == [9, 5]; len(largest([1], 3)) == 1"),
    "rev": ("def rev(s):\n    return s[::-1]", "rev('abc') == 'cba'; rev('') == ''; rev('é☃') == '☃é'"),
    "sort_by": ("def sort_by(xs, key):\n    return sorted(xs, key=key)", "sort_by([3, 1, 2], lambda x: -x) == [3, 2, 1]; sort_by(['bb', 'a'], len) == ['a', 'bb']"),
    "compose": ("def compose(f, g):\n    return lambda x: f(g(x))", "compose(lambda x: x + 1, lambda x: 2 * x)(5) == 11"),
    "adder": ("def adder(n):\n    def inner(x):\n        return x + n\n    return inner", "adder(3)(4) == 7; adder(0)(0) == 0"),
    "counter": ("def counter():\n    n = 0\n    def step():\n        nonlocal n\n        n += 1\n        return n\n    return step", "[c() for c in [counter()] * 3] == [1, 2, 3]"),
    "naturals": ("def naturals():\n    n = 0\n    while True:\n        yield n\n        n += 1", "[x for x, _ in zip(naturals(), range(3))] == [0, 1, 2]; next(naturals()) == 0"),
    "chunks": ("def chunks(xs, n):\n    for i in range(0, len(xs), n):\n        yield xs[i:i + n]", "list(chunks([1, 2, 3], 2)) == [[1, 2], [3]]; sum(len(c) for c in chunks(list(range(9)), 4)) == 9"),
    "pairs": ("def pairs(a, b):\n    return zip(a, b)", "list(pairs([1, 2], 'ab')) == [(1, 'a'), (2, 'b')]"),
    "squares": ("def squares(xs):\n    return map(lambda x: x * x, xs)", "list(squares([1, 2, 3])) == [1, 4, 9]; tuple(squares(iter([2]))) == (4,)"),
    "total": ("def total(xs):\n    return sum(xs)", "total(x for x in range(4)) == 6; total(iter([1.5, 2.5])) == 4.0"),
    "keys": ("def keys(d):\n    return d.keys()", "sorted(keys({'b': 1, 'a': 2})) == ['a', 'b']; 'a' in keys({'a': 1}); set(keys({})) == set()"),
    "flatten": ("def flatten(x):\n    return [z for y in x for z in flatten(y)] if isinstance(x, list) else [x]", "flatten([1, [2, [3, []]]]) == [1, 2, 3]"),
    "merge": ("def merge(a, b):\n    return {**a, **b}", "merge({'a': 1}, {'b': 2}) == {'a': 1, 'b': 2}; merge({(1, 2): None}, {}) == {(1, 2): None}"),
    "subsets": ("from itertools import combinations\ndef subsets(xs):\n    return {frozenset(c) for n in range(len(xs) + 1) for c in combinations(xs, n)}", "subsets([1, 2]) == {frozenset(), frozenset([1]), frozenset([2]), frozenset([1, 2])}"),
    "to_bytes": ("def to_bytes(s):\n    return s.encode()", "to_bytes('aé') == b'a\\xc3\\xa9'; isinstance(to_bytes(''), bytes)"),
    "half": ("from fractions import Fraction\ndef half(n):\n    return Fraction(n, 2)", "half(3) * 2 == 3; half(4) == 2; float(half(1)) == 0.5"),
    "price": ("from decimal import Decimal\ndef price(s):\n    return Decimal(s) * 2", "price('1.10') == 2 * price('0.55'); str(price('0.1')) == '0.2'"),
    "days_between": ("from datetime import date\ndef days_between(a, b):\n    return (date.fromisoformat(b) - date.fromisoformat(a)).days", "days_between('2024-02-28', '2024-03-01') == 2"),
    "tomorrow": ("import datetime\ndef tomorrow(d):\n    return d + datetime.timedelta(days=1)", "tomorrow(__import__('datetime').date(2024, 2, 28)).day == 29"),
    "phase": ("import cmath\ndef phase(z):\n    return cmath.phase(z)", "abs(phase(1j) - 1.5707963267948966) < 1e-12; phase(1 + 0j) == 0"),
    "split": ("import re\ndef split(s):\n    return re.split(r'[,|]', s)", "split('a,b|c') == ['a', 'b', 'c']"),
    "match": ("import re\ndef match(p, s):\n    return re.search(p, s)", "match('b+', 'abbc').group() == 'bb'; match('x', 'abc') is None; match('c', 'abc').start() == 2; match('a', 'a')"),
    "point": ("from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef point(a, b):\n    return Point(a, b)", "point(1, 2) == (1, 2); point(1, 2).y == 2; point(3, 4)._asdict() == {'x': 3, 'y': 4}"),
    "colour": ("from enum import IntEnum\nclass C(IntEnum):\n    RED = 1\ndef colour(n):\n    return C(n)", "colour(1) == 1; colour(1) + 1 == 2"),
    "transpose": ("def transpose(m):\n    return [list(r) for r in zip(*m)]", "transpose([[1, 2], [3, 4]]) == [[1, 3], [2, 4]]; transpose([]) == []"),
    "sort_in_place": ("def sort_in_place(xs):\n    xs.sort()", "[(sort_in_place(x), x)[1] for x in [[3, 1, 2]]] == [[1, 2, 3]]"),
    "fill": ("def fill(m, v):\n    for row in m:\n        for i in range(len(row)):\n            row[i] = v", "[(fill(x, 7), x)[1] for x in [[[1, 2], [3]]]] == [[[7, 7], [7]]]"),
    "forget": ("def forget(d, k):\n    d.pop(k, None)", "[(forget(d, 'a'), d)[1] for d in [{'a': 1, 'b': 2}]] == [{'b': 2}]"),
    "nan_free": ("def nan_free(xs):\n    return [x for x in xs if x == x]", "nan_free([1.0, float('nan')]) == [1.0]; nan_free([float('inf')]) == [float('inf')]"),
    "type_name": ("def type_name(x):\n    return type(x)", "type_name(1) == int; type_name('a') is str; type_name([]) == list"),
    "nothing": ("def nothing(*args, **kwargs):\n    return None", "nothing() is None; nothing(1, a=2) is None; not nothing()"),
    "optional": ("from typing import Optional, List\ndef optional(xs: List[int], default: Optional[int] = None) -> Optional[int]:\n    return max(xs, default=default)", "optional([1, 5]) == 5; optional([]) is None; optional([], default=3) == 3"),
    "sum": ("def sum(a, b):\n    return len([d for d in range(1, min(a, b) + 1) if a % d == 0 and b % d == 0])", "sum(10, 15) == 2; sum(4, 4) == 3"),
    "filter": ("def filter(xs, n):\n    return [x for x in xs if x > n]", "filter([1, 5, 9], 4) == [5, 9]"),
    "unique": ("def unique(xs):\n    seen = {}\n    return [seen.setdefault(x, x) for x in xs if x not in seen]", "unique([1, 2, 1]) == [1, 2]; unique('abca') == list('abc')"),
    "roman": ("def roman(n):\n    out = ''\n    for v, s in ((10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')):\n        while n >= v:\n            out, n = out + s, n - v\n    return out", "roman(14) == 'XIV'; roman(9) == 'IX'; roman(3) == 'III'"),
    "binary": ("def binary(n):\n    return bin(n)[2:]", "binary(10) == '1010'; binary(0) == '0'; int(binary(2 ** 70), 2) == 2 ** 70"),
    "parens": ("def parens(s):\n    depth = 0\n    for c in s:\n        depth += 1 if c == '(' else -1\n        if depth < 0:\n            return False\n    return depth == 0", "parens('(())') == True; parens(')(') == False; bool(parens(''))"),
    "apply_n": ("def apply_n(f, n, x):\n    for _ in range(n):\n        x = f(x)\n    return x", "apply_n(lambda x: x * 2, 10, 1) == 1024; apply_n(str.upper, 1, 'a') == 'A'"),
    "memo": ("from functools import lru_cache\n@lru_cache(None)\ndef memo(n):\n    return n if n < 2 else memo(n - 1) + memo(n - 2)", "memo(60) == 1548008755920; memo(1) == 1"),
    "deep": ("def deep(n):\n    return [deep(n - 1)] if n else []", "deep(3) == [[[[]]]]; deep(0) == []"),
    "big_list": ("def big_list(n):\n    return list(range(n))", "len(big_list(50000)) == 50000; big_list(3)[-1] == 2"),
    "hash_of": ("import hashlib\ndef hash_of(s):\n    return hashlib.md5(s.encode()).hexdigest()", "hash_of('a') == '0cc175b9c0f1b6a831c399e269772661'"),
    "slices": ("def slices(s, n):\n    return s[n:], s[:n]", "slices('abcd', 1) == ('bcd', 'a'); slices([1, 2], 1) == ([2], [1])"),
    "unpack": ("def unpack(t):\n    first, *rest = t\n    return first, rest", "unpack((1, 2, 3)) == (1, [2, 3]); unpack('ab')[1] == ['b']"),
}  # fmt: skip

# What does not fit the pattern: classes, errors, printed text, values and names that the prompt gives.
SPECIAL = {
    "a class": ("class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, x):\n        self.items.append(x)\n    def pop(self):\n        return self.items.pop()\n    def __len__(self):\n        return len(self.items)", "s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2 and s.pop() == [2] and s.items == [1]\ntry:\n    s.pop()\n    s.pop()\n    assert False\nexcept IndexError:\n    pass"),
    "objects as arguments": ("class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\ndef longest(pairs):\n    return max(p.b - p.a for p in pairs)", "assert longest([Pair(5, 24), Pair(15, 25)]) == 19"),
    "a linked list": ("class Node:\n    def __init__(self, v, n=None):\n        self.v, self.n = v, n\ndef length(node):\n    return 0 if node is None else 1 + length(node.n)", "root = Node(1)\nroot.n = Node(2)\nroot.n.n = Node(3)\nassert length(root) == 3 and length(None) == 0 and root.n.v == 2"),
    "operators": ("class V:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n    def __add__(self, o):\n        return V(self.x + o.x, self.y + o.y)\n    def __mul__(self, k):\n        return V(self.x * k, self.y * k)\n    def __eq__(self, o):\n        return isinstance(o, V) and (self.x, self.y) == (o.x, o.y)\n    def __lt__(self, o):\n        return self.x < o.x\n    def __repr__(self):\n        return f'V({self.x}, {self.y})'", "assert V(1, 2) + V(3, 4) == V(4, 6)\nassert V(1, 2) != V(2, 1)\nassert V(1, 2) * 3 == V(3, 6)\nassert V(1, 0) < V(2, 0)\nassert repr(V(1, 2)) == 'V(1, 2)'\nassert sorted([V(2, 0), V(1, 0)])[0].x == 1"),
    "a dataclass": ("from dataclasses import dataclass\n@dataclass\nclass Item:\n    name: str\n    price: float = 1.0\ndef cheapest(items):\n    return min(items, key=lambda i: i.price)", "a, b = Item('a', 3.0), Item('b')\nassert cheapest([a, b]) is b and cheapest([a]).name == 'a' and Item('a') == Item('a')"),
    "an error of its own": ("class Empty(ValueError):\n    pass\ndef first(xs):\n    if not xs:\n        raise Empty('nothing there')\n    return xs[0]", "try:\n    first([])\n    assert False, 'no error'\nexcept Empty as e:\n    assert 'nothing' in str(e)\nassert first([3]) == 3"),
    "an error of Python's": ("def inverse(x):\n    return 1 / x", "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        with self.assertRaises(ZeroDivisionError):\n            inverse(0)\n        self.assertAlmostEqual(inverse(3), 0.3333, 3)\nunittest.main()"),
    "printed text": ("def greet(name):\n    print('hello', name)", "import io\nfrom contextlib import redirect_stdout\nwith redirect_stdout(io.StringIO()) as out:\n    greet('you')\nassert out.getvalue() == 'hello you\\n'"),
    "asked text": ("def twice():\n    return int(input('n? ')) * 2", "from unittest.mock import patch\nwith patch('builtins.input', return_value='21'):\n    assert twice() == 42"),
    "a value": ("answer = [x * x for x in range(4)]", "assert answer == [0, 1, 4, 9]"),
    "a file": ("def count_lines(path):\n    with open(path) as f:\n        return len(f.readlines())", "with open('t.txt', 'w') as f:\n    f.write('a\\nb\\n')\nassert count_lines('t.txt') == 2"),
    "a decorator": ("import functools\ndef double(f):\n    @functools.wraps(f)\n    def inner(*args):\n        return 2 * f(*args)\n    return inner", "@double\ndef three(x):\n    return 3 + x\nassert three(1) == 8"),
    "a context manager": ("class Held:\n    def __init__(self):\n        self.is_open = False\n    def __enter__(self):\n        self.is_open = True\n        return self\n    def __exit__(self, *e):\n        self.is_open = False", "h = Held()\nwith h as inner:\n    assert inner.is_open\nassert not h.is_open"),
    "an object of the test": ("def largest_area(shapes):\n    return max(s.area() for s in shapes)", "class Square:\n    def __init__(self, side):\n        self.side = side\n    def area(self):\n        return self.side ** 2\nassert largest_area([Square(2), Square(5)]) == 25"),
    "a module of the program": ("import math\ndef area(r):\n    return math.pi * r * r", "assert math.isclose(area(2), 4 * math.pi)"),
    "a name from math": ("from math import isclose, pi\ndef circumference(r):\n    return 2 * pi * r", "assert isclose(circumference(1), 6.283185307179586)"),
    "typing of the program": ("from typing import List\ndef ones(n: int) -> List[int]:\n    return [1] * n", "def check(f):\n    found: List[int] = f(3)\n    assert found == [1, 1, 1]\ncheck(ones)"),
    "a static method": ("class Temp:\n    @staticmethod\n    def to_f(c):\n        return c * 9 / 5 + 32\n    @property\n    def kind(self):\n        return 'temp'", "assert Temp.to_f(100) == 212\nassert Temp().kind == 'temp'"),
    "a main guard": ("def f():\n    return 1\nif __name__ == '__main__':\n    f(input())", "assert f() == 1"),
    "a random test": ("def med(xs):\n    s = sorted(xs)\n    n = len(s)\n    return s[n // 2] if n % 2 else (s[n // 2 - 1] + s[n // 2]) / 2", "import random, statistics\nfor _ in range(100):\n    xs = [random.randint(0, 99) for _ in range(random.randint(1, 20))]\n    assert med(xs) == statistics.median(xs)"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Right:
    """A program, a test that it passes, and the prompt where a task has one."""

    program: str
    test: str
    given: str = ""


def make_all() -> dict[str, Right]:
    """Every task with every manner of test."""
    found = {name: Right(*texts) for name, texts in SPECIAL.items()}
    for name, (program, calls) in TASKS.items():
        checks = [call.strip() for call in calls.split(";")]
        asserts = "\n".join(f"assert {check}" for check in checks)
        found[f"{name}, asserts"] = Right(program, asserts)
        if name in ("sum", "filter"):
            continue
        inner = "".join(f"    assert {check.replace(f'{name}(', 'candidate(')}\n" for check in checks)
        prompt = f"{program.split('def ')[0]}def {name}(*args):\n    '''Say what is asked.'''\n"
        found[f"{name}, check"] = Right(program, f"def check(candidate):\n{inner}\ncheck({name})", prompt)
        methods = "".join(f"    def test_{i}(self):\n        self.assertTrue({c})\n" for i, c in enumerate(checks))
        found[f"{name}, unittest"] = Right(program, f"import unittest\nclass T(unittest.TestCase):\n{methods}")
        found[f"{name}, functions"] = Right(
            program, "".join(f"def test_{i}():\n    assert {c}\n\n" for i, c in enumerate(checks))
        )
    return found
