"""Charts as SVG, for the reports of several packages."""
