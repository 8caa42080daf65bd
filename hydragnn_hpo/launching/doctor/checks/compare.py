"""Compare one figure of all hosts: with the profile where it says one, else with each other."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hydragnn_hpo.launching.doctor.finding import Finding, State
from hydragnn_hpo.launching.doctor.outliers import behind


@dataclass(frozen=True)
class Figure:
    """How a figure is called, written and mended."""

    check: str
    write: Callable[[float], str]
    cure: str
    """For hosts that are not as they should be."""


def compare_counts(
    figure: Figure, values: Mapping[str, float], expected: float, *, least: float = 1.0
) -> list[Finding]:
    """Say which hosts have less than a share of what is expected, or not what most others have.

    Args:
        figure: what it is about.
        values: of each host.
        expected: by the profile; 0 where it does not say.
        least: share of what is expected that will do; 1.0 wants it exactly.
    """
    wanted = expected or _usual(values)

    def fits(value: float) -> bool:
        return value == wanted if least == 1.0 else value >= least * wanted

    source = "" if expected else " as on most hosts" if len(values) > 1 else ""
    return [
        Finding(
            figure.check,
            "ok" if fits(value) else "wrong",
            figure.write(value),
            f"{figure.write(wanted)}{source}" if expected or len(values) > 1 else "",
            "" if fits(value) else figure.cure,
            (host,),
            value,
        )
        for host, value in values.items()
    ]


def _usual(values: Mapping[str, float]) -> float:
    """Give the most frequent value; the largest of those that are equally frequent."""
    counts = Counter(values.values())
    return max(counts, key=lambda value: (counts[value], value), default=0.0)


def compare_speeds(
    figure: Figure,
    values: Mapping[str, float],
    *,
    factor: float,
    low_is_bad: bool,
    limit: float | None = None,
    fine: float | None = None,
) -> list[Finding]:
    """Say which hosts are far behind the others, or beyond a limit.

    Args:
        figure: what it is about.
        values: of each host.
        factor: by which a host must be worse than the median.
        low_is_bad: whether small values are bad.
        limit: beyond which any host is slow.
        fine: up to which none is, whatever the others do: a time that nobody would notice.
    """
    slow = behind(values, factor, low_is_bad=low_is_bad)
    if fine is not None:
        slow = {host: median for host, median in slow.items() if values[host] > fine}

    def state(host: str, value: float) -> State:
        beyond = limit is not None and (value < limit if low_is_bad else value > limit)
        return "slow" if host in slow or beyond else "ok"

    said = _said(figure, next(iter(slow.values()), None), limit, low_is_bad)
    return [
        _judged(figure, host, value, state(host, value), said) for host, value in values.items()
    ]


def _said(figure: Figure, median: float | None, limit: float | None, low_is_bad: bool) -> str:
    """Say what is expected: as the others, else the limit."""
    if median is not None:
        return f"about {figure.write(median)} as on most hosts"
    edge = "at least" if low_is_bad else "at most"
    return "" if limit is None else f"{edge} {figure.write(limit)}"


def _judged(figure: Figure, host: str, value: float, state: State, expected: str) -> Finding:
    cure = "" if state == "ok" else figure.cure
    return Finding(figure.check, state, figure.write(value), expected, cure, (host,), value)
