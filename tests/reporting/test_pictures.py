"""Committed pictures stay small, and a picture of few colours keeps them."""

import io
from pathlib import Path

import matplotlib.image
import numpy as np
from PIL import Image

from flstudy.reporting.style import COLOURS, PALETTE, new_figure, small_png, to_png

ROOT = Path(__file__).parents[2]
MOST = 4_000_000  # bytes of all pictures together
KINDS = (".png", ".svg", ".jpg", ".webp")


def test_committed_pictures_are_under_4_mb_together():
    places = [ROOT / name for name in ("tune_configs", "docs", "tests/benchmark/results")]
    pictures = [path for place in places for path in place.rglob("*") if path.suffix in KINDS]
    assert len(pictures) > 30
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in pictures}
    assert sum(sizes.values()) < MOST, sorted(sizes.items(), key=lambda item: -item[1])[:5]


def test_a_picture_keeps_its_colours(tmp_path):
    figure = new_figure(2.0)
    axes = figure.add_subplot()
    for place, colour in enumerate(COLOURS):
        axes.plot([0, 1], [place, place + 1], color=colour, linewidth=3)
    path = to_png(figure, tmp_path / "deep" / "lines.png")
    whole = io.BytesIO()
    figure.savefig(whole, format="png")
    assert path.stat().st_size < 0.6 * len(whole.getvalue())
    drawn = (matplotlib.image.imread(path)[..., :3] * 255).round().astype(int)
    for colour in COLOURS:
        exact = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        assert (drawn == exact).all(-1).any(), colour
    with Image.open(path) as opened:
        assert opened.mode == "P"
        assert opened.info["dpi"][0] > 100


def test_a_picture_with_a_palette_stays_as_it_is(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    once = small_png(tmp_path / "noise.png", tmp_path / "once.png")
    again = small_png(once, tmp_path / "again.png")
    with Image.open(once) as first, Image.open(again) as second:
        assert first.convert("RGB").tobytes() == second.convert("RGB").tobytes()
        assert len(first.convert("RGB").getcolors()) == PALETTE
