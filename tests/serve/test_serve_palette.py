"""Colours of the pages by calculation: kinds stay apart for colour-blind eyes, and text stands out in both themes."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from prism.serve.web import pages

STATIC = Path(pages.__file__).parent.parent / "static"
# Linear RGB of dichromats at full severity: Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, table of the paper.
DICHROMATS = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
# Difference in CIELAB (CIE 1976). About 2.3 is just noticeable; areas a few pixels high need several times that.
LEAST_APART = 19.0
CONFUSED = (("pp", "tp"), ("dp", "storage"), ("wait", "host"))
TRAINING = ("compute", "dp", "pp", "tp", "cp", "ep", "embedding", "storage", "unknown", "wait", "host")


def read_colours() -> dict[str, str]:
    text = re.search(r"export const COLOURS = \{(.*?)\};", (STATIC / "charts.js").read_text(), re.S)
    assert text
    return dict(re.findall(r'(\w+): "(#[0-9a-f]{6})"', text[1]))


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear sRGB under D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    t = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(a: str, b: str, eyes: str = "") -> float:
    seen = np.array(DICHROMATS[eyes]) if eyes else np.eye(3)
    return float(np.linalg.norm(lab(seen @ linear(a)) - lab(seen @ linear(b))))


def contrast(a: str, b: str) -> float:
    """As WCAG 2 defines it."""
    light, dark = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def read_themes() -> dict[str, dict[str, str]]:
    css = (STATIC / "style.css").read_text()
    blocks = {"light": css[: css.index("@media")], "dark": css[css.index(':root[data-theme="dark"]') :]}
    found = {}
    for theme, text in blocks.items():
        names = re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text[: text.index("}")])
        found[theme] = dict(names)
    return found


@pytest.mark.parametrize("eyes", ["", *DICHROMATS])
def test_kinds_of_the_timeline_stay_apart(eyes: str) -> None:
    colours = read_colours()
    for a, b in CONFUSED:
        assert apart(colours[a], colours[b], eyes) >= 25, (a, b, apart(colours[a], colours[b], eyes))
    close = {
        (a, b): round(apart(colours[a], colours[b], eyes), 1)
        for a, b in combinations(TRAINING, 2)
        if apart(colours[a], colours[b], eyes) < LEAST_APART
    }
    assert close == {}


def test_the_calculation_sees_what_red_green_blindness_does() -> None:
    red, green = "#cc5555", "#558a2a"
    assert apart(red, green) > 60 and apart(red, green, "deuteranopia") < 25


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_as_aa_asks(theme: str) -> None:
    colour = read_themes()[theme]
    pairs = [(ink, ground) for ink in ("ink", "soft", "faint", "accent") for ground in ("bg", "card", "line-soft")]
    pairs += [(tone, ground) for tone in ("good", "warn", "bad") for ground in ("card", f"{tone}-soft")]
    pairs += [("accent", "accent-soft"), ("soft", "line-soft"), ("ink", "mark"), ("ink", "bad-soft")]
    weak = {pair: round(contrast(colour[pair[0]], colour[pair[1]]), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


@pytest.mark.parametrize(("theme", "place"), [("light", 0), ("dark", 1)])
def test_lines_of_charts_stand_out_from_their_card(theme: str, place: int) -> None:
    text = (STATIC / "style.css").read_text()
    card = read_themes()[theme]["card"]
    for number in range(10):
        colours = re.findall(rf"--series-{number}: (#[0-9a-f]{{6}})", text)
        assert len(colours) == 3 and colours[1] == colours[2], "light, dark by choice, dark by the system"
        assert contrast(colours[place], card) >= 3.0, (number, contrast(colours[place], card))
