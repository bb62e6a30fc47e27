"""Marks of tests that need packages which take seconds to import.

Every worker collects every file: a package is looked for then, and imported by the tests that need it.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
