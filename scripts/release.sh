#!/bin/sh
# Build and check a release: release.sh PYTHON. Publishes nothing.
set -eu
python=$1
version=$("$python" -c "from prism.version import __version__; print(__version__)")
test -z "$(git status --porcelain)" || { echo "release: commit or stash your changes first"; exit 1; }
grep -q "^## $version" CHANGELOG.md || { echo "release: CHANGELOG.md has no entry for $version"; exit 1; }
rm -rf dist
"$python" -m pip install --quiet --disable-pip-version-check build twine
"$python" -m build --outdir dist .
"$python" -m twine check --strict dist/*
"$python" -m pytest -q -m slow tests/install -k "plain_install or wheel_holds"
echo "release: dist/ holds $version; publish with: twine upload dist/*"
