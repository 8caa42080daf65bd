"""Forecasts made by hand: how much of the slot-time went where."""

from types import SimpleNamespace

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.planning.forecast import Forecast, ForecastMachine
from hydragnn_hpo.planning.simulator import CAUSES, Bar, SimulatedWork, SimulationResult

SLOTS, HOUR = 80, 3600.0


def make_forecast(hours=1.0, longest=0.5, works=8, **shares):
    """Ten hosts of eight slots; what is not named of the slot-time is training."""
    whole = SLOTS * hours * HOUR
    spent = {cause: shares.get(cause, 0.0) * whole for cause in CAUSES}
    spent["training"] = whole - sum(spent.values())
    bars = tuple(
        Bar(f"t{n:04d}@4", (f"h:{n}",), 0.0, longest * HOUR, "training") for n in range(works)
    )
    simulated = SimulationResult(
        bars, hours * HOUR, SLOTS, spent, useful_seconds=0.9 * spent["training"], restarts=1
    )
    each = [SimulatedWork(bar.trial, (1,), (longest * HOUR,)) for bar in bars]
    machine = ForecastMachine(find_profile("frontier"), 10, 8)
    price = SimpleNamespace(sigma=0.0)
    priced = {"t0000": SimpleNamespace(price=price, label="gin")}
    return Forecast(machine, priced, 0, simulated, tuple(each))
