"""Format numbers with units for messages."""


def duration(seconds: float) -> str:
    """Return a time in the unit that fits it: ``45 s``, ``3.2 min``, ``2.1 h``, ``3.0 d``."""
    for limit, unit, size in ((90.0, "s", 1.0), (5400.0, "min", 60.0), (172_800.0, "h", 3600.0)):
        if seconds < limit:
            digits = 1 if size > 1.0 or seconds < 10.0 else 0
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86_400.0:.1f} d"


def percent(share: float) -> str:
    """Return a share in percent, with a digit more where it is small."""
    return f"{100.0 * share:.{0 if share >= 0.0995 else 1}f} %"


def fixed(value: float, digits: int = 4) -> str:
    """Return a number with some digits after the point; a huge one as ``1e+300``."""
    return f"{value:.{digits}f}" if abs(value) < 1e9 else f"{value:.{digits}g}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 rank``, ``8,192 hosts``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def energy(joules: float) -> str:
    """Return an energy in the unit that fits it."""
    hours = joules / 3.6e6
    return f"{hours:,.1f} kWh" if hours >= 1.0 else f"{joules / 1e3:,.1f} kJ"
