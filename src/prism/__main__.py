"""`python -m prism`."""

from prism.cli.main import main

main()
