"""What shows that Prism is right: benchmarks beside their peers, drills, worlds, the corpus and mutation."""
