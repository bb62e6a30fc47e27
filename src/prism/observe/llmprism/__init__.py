"""LLMPrism's published method, reimplemented as a baseline: four phases, one file each.

The method (Jiang et al., "LLMPrism: Black-box Performance Diagnosis for Production LLM Training Platforms", DSN 2025)
is closed source, so this is our interpretation of what is public, with open choices made in its favour.
`docs/observe-method.md` lists what is known and what was chosen.
"""

from prism.observe.llmprism.diagnosis import diagnose_as_published, draw_published_timeline

__all__ = ["diagnose_as_published", "draw_published_timeline"]
