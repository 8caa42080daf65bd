"""How fast this computer trains now: steps of a small net, timed and compared with their price."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from hydragnn_hpo.config import ProfileConfig, TrialConfig, find_profile
from hydragnn_hpo.launching import Slot
from hydragnn_hpo.placement import CostModel
from hydragnn_hpo.planning import Forecast, ForecastMachine

TIMEOUT = 120.0
"""Seconds after which a measurement is given up."""

FACTORS = (0.5, 30.0)
"""Smallest and largest factor that is believed: load of a moment says little of an hour."""

NOTABLE = 1.25
"""Factor from which a sentence says it."""

LATE = 1.2
"""Factor over the wanted time from which a campaign is said to take too long."""

MEASURE = "from hydragnn_hpo.training.speed_probe import answer_speed; answer_speed()"
"""Code of the process that measures, which loads torch."""


def measure_slowdown(profile: ProfileConfig) -> float:
    """Return how many times as long training takes here, now, as a profile says.

    A process of its own trains a small net for half a second of CPU time; seconds are those of the
    clock on the wall, so that slow cores and other programs both count.

    Args:
        profile: of this computer.

    Returns:
        Mean seconds of a step over those of its price, within ``FACTORS``; 1 where the probe fails.
    """
    argv = [sys.executable, "-c", MEASURE]
    try:
        answer = subprocess.check_output(argv, stderr=subprocess.DEVNULL, timeout=TIMEOUT)
        report = json.loads(answer)
        config = TrialConfig.model_validate_json(report["config"])
    except (OSError, subprocess.SubprocessError, ValueError):
        return 1.0
    priced = CostModel(report["stats"], profile).price(config).epoch_seconds(1)
    least, most = FACTORS
    return float(f"{min(most, max(least, report['seconds'] / priced)):.2g}")


def measure_machine(slots: Sequence[Slot]) -> tuple[ForecastMachine, tuple[str, ...]]:
    """Describe this computer, as fast as it trains now, to a forecast.

    All times of its profile are multiplied by ``measure_slowdown``, and the overhead of a campaign.
    GPUs keep their profile.

    Args:
        slots: those that the campaign uses.

    Returns:
        The machine, and a sentence where it is clearly slower than its profile.
    """
    profile = find_profile(None)
    machine = ForecastMachine(profile, 1, len(slots))
    if any(slot.device != "cpu" for slot in slots):
        return machine, ()
    factor = measure_slowdown(profile)
    scaled = {
        "flops_per_second": profile.flops_per_second / factor,
        "bytes_per_second": profile.bytes_per_second / factor,
        "step_seconds": profile.step_seconds * factor,
        "layer_seconds": profile.layer_seconds * factor,
        "start_seconds": profile.start_seconds * factor,
        "cold_start_seconds": profile.cold_start_seconds * factor,
        "restart_seconds": profile.restart_seconds * factor,
    }
    slower = replace(
        machine, profile=profile.model_copy(update=scaled), overhead=machine.overhead * factor
    )
    why = (
        f"Training takes {factor:g} times as long here, now, as the profile of this machine says "
        "(measured; other programs count): prices are raised by that."
    )
    return slower, (why,) if factor >= NOTABLE else ()


def count_seconds(forecast: Forecast) -> float:
    """Return the seconds of a whole campaign: its search, and what comes before and after."""
    return forecast.simulated.makespan + forecast.machine.overhead


def explain_late(seconds: float, minutes: float) -> str | None:
    """Return a sentence where a time cannot be kept, and what is needed; None where it can.

    Args:
        seconds: that the smallest sensible campaign takes.
        minutes: that it may take.
    """
    if seconds <= LATE * 60.0 * minutes:
        return None
    return (
        f"WARNING: --minutes {minutes:g} cannot be kept, as the smallest sensible search takes "
        f"about {math.ceil(seconds / 60.0)} here: give it these, start from part of the data, or "
        "use a larger machine."
    )
