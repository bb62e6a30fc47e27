"""The style of report.html, for light and dark screens."""

from __future__ import annotations

# Kinds and jobs differ by lightness as well as hue, after Okabe and Ito's palette for colour-blind readers.
_JOBS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#b2a100", "#7f7f7f", "#a6761d")
_KINDS = {
    "compute": "#8fb8de", "wait": "#c9ced6", "host": "#e3d7b0", "dp": "#d55e00", "pp": "#7b4ab8", "tp": "#009e73",
    "cp": "#cc3f86", "ep": "#5f9c1e", "embedding": "#a6761d", "storage": "#5c6470", "unknown": "#9aa1ab",
}  # fmt: skip

STYLE = (
    """
:root{color-scheme:light dark;--paper:#fff;--ink:#16191d;--soft:#5c6470;--grid:#d8dbe0;--line:#c4c8cf;--card:#f6f7f9;
--bad:#c1121f;--good:#1b7f3b;--band:#fbdcdc;--ink-0:#0b5fa5}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e8eaed;--soft:#a2aab5;--grid:#343a43;--line:#454c57;
--card:#1d2127;--bad:#ff7b7b;--good:#6bd08b;--band:#4a2326;--ink-0:#7db8f0}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1120px;margin:0 auto;
padding:1rem}
h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.2rem;border-bottom:1px solid var(--line);margin-top:2rem}
.verdict{border-left:4px solid var(--bad);background:var(--card);padding:.5rem .8rem;font-weight:600}
.verdict.good{border-color:var(--good)}
.findings{padding-left:1.6rem}.findings li{background:var(--card);border:1px solid var(--line);border-radius:4px;
padding:.5rem .8rem;margin:.5rem 0;overflow-wrap:anywhere}
.findings h3{font-size:1rem;margin:0}.findings p{margin:.2rem 0}.facts span{margin-right:1.4rem;white-space:nowrap}
.facts,.meaning{color:var(--soft)}.facts b{color:var(--ink)}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.2rem .6rem;text-align:right;white-space:nowrap}
thead th{color:var(--soft);font-weight:600}tbody th{text-align:left}
.scroll{overflow-x:auto}.figure svg{max-width:100%;height:auto}
.swatch{display:inline-block;width:.8em;height:.8em;border-radius:2px}
.spark polyline{fill:none;stroke:var(--ink-0);stroke-width:1.5}
.wide-picture{max-width:100%;min-width:760px;height:auto}
.wide-picture text{font:12px system-ui,sans-serif;fill:var(--ink)}
.wide-picture .rank{font-size:11px}.wide-picture .blamed{fill:var(--bad);font-weight:700}
.edge{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.switch{fill:var(--card);stroke:var(--soft)}.host{fill:var(--card);stroke:var(--line)}
.nic{stroke:none}.free{fill:var(--line)}.cable{stroke:var(--line);stroke-width:1}
.blamed-box{stroke:var(--bad);stroke-width:3}.blamed-line{stroke:var(--bad);stroke-width:3}
.tag circle{fill:var(--bad)}.wide-picture .tag text{fill:var(--paper);font-size:10px;font-weight:700;text-anchor:middle}
@media print{body{max-width:none}}
"""
    + "".join(f".job-{i}{{fill:{ink};background:{ink}}}" for i, ink in enumerate(_JOBS))
    + "".join(f".k-{kind}{{fill:{ink}}}" for kind, ink in _KINDS.items())
)
