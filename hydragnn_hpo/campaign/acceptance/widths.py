"""Stage ``widths``: one trial on one rank, on two of a host and on two of two hosts (Law 1)."""

from collections.abc import Mapping

from hydragnn_hpo.campaign.acceptance.bench import Bench
from hydragnn_hpo.campaign.acceptance.comparing import equal_width, errors_apart, weights_apart
from hydragnn_hpo.campaign.acceptance.trials import (
    attempt_of,
    result_of,
    settled_on,
    store_of,
    weights_of,
    write_trial,
)
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.layout import TrialDir

EPOCHS = 4
"""Twelve steps: enough for a wrong sum to show, few enough for rounding to stay small."""

Layouts = dict[str, tuple[Slot, ...]]


def layouts(hosts: Mapping[str, tuple[Slot, ...]]) -> Layouts:
    """Choose the slots of each trial; what the hosts do not have is left out.

    Ranks that share a device would wait for each other: of a device's slots only one is taken.
    """
    every = [_apart(slots) for slots in hosts.values()]
    found: Layouts = {"one rank": every[0][:1]}
    if two := next((slots[:2] for slots in every if len(slots) > 1), None):
        found["one host"] = two
    if len(every) > 1:
        found["two hosts"] = (every[0][0], every[1][0])
    return found


def _apart(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    by_device = {slot.visible or slot.name: slot for slot in reversed(slots)}
    return tuple(sorted(by_device.values(), key=lambda slot: slot.index))


def run(bench: Bench, seconds: float) -> list[Finding]:
    """Train the same trial in all layouts, one after the other, and compare.

    Raises:
        HydraError: the store could not be built.
    """
    store, folder = store_of(bench), bench.new_folder("widths")
    chosen = layouts(bench.hosts)
    trials: dict[str, TrialDir] = {}
    for name, slots in chosen.items():
        place = folder / name.replace(" ", "_")
        trials[name] = trial = write_trial(
            place, store, epochs=EPOCHS, precision="fp32", checkpoint_seconds=60.0
        )
        job = attempt_of(trial, slots, epochs=EPOCHS, store=store)
        ended = bench.run([job], seconds / 3)[job.id]
        if ended.error:
            raise JobError(f"the trial on {name} {ended.error}; see {job.log}.")
    found = [_compared(trials, "one rank", other, chosen) for other in list(chosen)[1:]]
    if {"one host", "two hosts"} <= chosen.keys():
        found.append(_compared(trials, "one host", "two hosts", chosen))
    return found + [_untested(name) for name in ("one host", "two hosts") if name not in chosen]


def _compared(trials: dict[str, TrialDir], one: str, other: str, chosen: Layouts) -> Finding:
    mae = [result_of(trials[name])["val_mae"] for name in (one, other)]
    weights = [weights_of(trials[name]) for name in (one, other)]
    hosts = settled_on(chosen[other])
    return equal_width(f"{one}, {other}", errors_apart(*mae), weights_apart(*weights), hosts)


def _untested(name: str) -> Finding:
    why = "there is one host" if name == "two hosts" else "every host has one slot"
    return Finding(f"same result: {name}", "unknown", found=f"not testable here: {why}")
