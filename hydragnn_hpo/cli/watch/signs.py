"""Bars and curves out of letters, for terminals with and without Unicode and colours."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Signs:
    """What bars are drawn with."""

    done: str
    open: str
    curve: str
    """From the least to the most."""
    causes: Mapping[str, str]
    """Fillings of the bar of slots; they differ where colours do not show."""
    more: str
    """Where something was cut off."""


UNICODE = Signs(
    done="\u2501",
    open="\u2500",
    curve="\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588",
    causes={
        "training": "\u2588",
        "start_up": "\u2593",
        "between": "\u2592",
        "ending": "\u2591",
        "lost": "x",
        "held": "\u2022",
        "brain": "\u00b7",
        "tail": "\u2219",
        "away": "-",
    },
    more="\u2026",
)
ASCII = Signs(
    done="#",
    open="-",
    curve="_.-=+*#",
    causes=dict(
        zip(
            ("training", "start_up", "between", "ending", "lost", "held", "brain", "tail", "away"),
            "#+=~x*o.-",
            strict=True,
        )
    ),
    more=">",
)

STYLES = {
    "training": "green",
    "start_up": "cyan",
    "between": "blue",
    "ending": "bright_blue",
    "lost": "red",
    "held": "yellow",
    "brain": "magenta",
    "tail": "bright_black",
    "away": "bright_red",
}
"""Colours of causes: of the 16 that every terminal's theme has, so that they fit light and dark."""


def bar(share: float, width: int, signs: Signs) -> tuple[str, str]:
    """Split a bar into what is done and what is open."""
    done = round(width * min(1.0, max(0.0, share)))
    return signs.done * done, signs.open * (width - done)


def parts(shares: Mapping[str, float], width: int) -> dict[str, int]:
    """Share out columns: each part gets its floor, those with the largest rest one more.

    Args:
        shares: of the parts; they sum to 1, or to 0 where nothing is known.
        width: columns in all.
    """
    exact = {name: max(0.0, share) * width for name, share in shares.items()}
    given = {name: math.floor(columns) for name, columns in exact.items()}
    left = round(sum(exact.values())) - sum(given.values())
    for name in sorted(exact, key=lambda name: given[name] - exact[name])[:left]:
        given[name] += 1
    return given


def curve(values: Sequence[float], width: int, signs: Signs) -> str:
    """Draw values as one line of letters, on a logarithmic scale where all are positive.

    More values than columns are thinned; the last of each column stays.

    Args:
        values: finite numbers, in order.
        width: columns at most.
        signs: to draw with.
    """
    if not values or width < 1:
        return ""
    if len(values) > width:
        values = [values[(place + 1) * len(values) // width - 1] for place in range(width)]
    scaled = [math.log(value) for value in values] if min(values) > 0 else list(values)
    low, high = min(scaled), max(scaled)
    top = len(signs.curve) - 1
    steps = [round(top * (value - low) / (high - low)) if high > low else 0 for value in scaled]
    return "".join(signs.curve[step] for step in steps)
