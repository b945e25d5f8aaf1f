"""Predicted over measured times as a picture, by source, on logarithmic axes.

matplotlib draws it and is imported only here; it comes with the extra `plot`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from astrarium.documents import write_atomic_bytes
from astrarium.errors import InputError
from astrarium.report.validation import NOT_SCORED

KINDS: Final = (".png", ".svg")
SIZE_INCHES: Final = (8.0, 8.0)
DOTS_PER_INCH: Final = 150
BAND: Final = 0.1  # the dashed lines: predictions off by 10 %
MARGIN: Final = 1.3  # of the axes beyond the outermost point
UNSCORED_COLOUR: Final = "0.85"
COLOURS: Final = (
    *("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9", "navy"),
    *("olive", "teal", "maroon", "gold", "black", "lime", "fuchsia", "tan", "indigo", "coral"),
)
NAMED: Final = 21  # sources that the legend has room for

Points = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def check_plot(path: str) -> None:
    """Refuse what cannot be drawn before any work is done."""
    if Path(path).suffix.lower() not in KINDS:
        raise InputError(f"--plot {path}: expected a name that ends in {', '.join(KINDS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(
            "--plot needs matplotlib; install it with: pip install 'astrarium[plot]'"
        ) from None


def draw(path: str, points: Points) -> None:
    """Write the picture in the format that its name asks for."""
    if not points:
        raise InputError(f"--plot {path}: no row has both a measured and a predicted time")
    content, kind = io.BytesIO(), Path(path).suffix.lower()
    about: Mapping[str, Any] = {"metadata": {"Date": None}} if kind == ".svg" else {}
    _figure(points).savefig(content, format=kind[1:], dpi=DOTS_PER_INCH, **about)
    write_atomic_bytes(Path(path), content.getvalue())


def _figure(points: Points) -> Any:  # noqa: ANN401  matplotlib's types are not needed to read this
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "astrarium"  # the same input makes the same file
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    every = [value for pair in points.values() for values in pair for value in values]
    low, high = min(every) / MARGIN, max(every) * MARGIN
    ends = [low, high]
    axes.plot(ends, ends, color="0.3", linewidth=1)
    for factor in (1 - BAND, 1 + BAND):
        axes.plot(ends, [factor * end for end in ends], color="0.6", linewidth=1, linestyle="--")
    colours = iter(COLOURS * (len(points) // len(COLOURS) + 1))
    for name, (measured, predicted) in points.items():
        colour = UNSCORED_COLOUR if name == NOT_SCORED else next(colours)
        axes.scatter(measured, predicted, s=12, alpha=0.6, label=name, color=colour)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        xlabel="measured seconds of an iteration",
        ylabel="predicted seconds",
        title=f"Predictions against measurements (dashed: {BAND:.0%} off)",
    )
    axes.set_aspect("equal")
    if len(points) <= NAMED:
        axes.legend(fontsize="x-small", loc="upper left")
    return figure
