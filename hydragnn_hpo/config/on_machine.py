"""A campaign on a machine: what it does not say itself, the machine's profile says."""

from pathlib import Path
from typing import Any

from hydragnn_hpo.config.campaign import MachineConfig
from hydragnn_hpo.config.loading import parse
from hydragnn_hpo.config.machine import find_profile, located
from hydragnn_hpo.errors import ConfigError

OF_ONE_MACHINE = ("backend", "interface", "address")
"""Keys that another machine has values of its own for."""

FILES = ("pack", "container")
"""Keys that name a file."""

HERE = Path()
"""The folder that names on the command line are looked up from."""


def on_machine(machine: MachineConfig, asked: dict[str, Any], folder: Path = HERE) -> MachineConfig:
    """Settle ``[machine]``: what was asked counts most, then the campaign, then the profile.

    A profile of the user's own, an archive or an image is named by its absolute path from here
    on: a run goes on from any folder.

    Args:
        machine: of the campaign.
        asked: values from the command line; ``profile`` among them changes the machine, and then
            the campaign's own ``backend``, ``interface`` and ``address`` do not count any more.
        folder: of the campaign's file: its profile is looked for beside it first.

    Raises:
        ConfigError: there is no such profile, or a value is wrong.
    """
    said = machine.model_dump(exclude_unset=True)
    wanted = {key: value for key, value in asked.items() if value is not None}
    if "profile" in wanted:
        wanted["profile"] = located(wanted["profile"], HERE)
        if not _same(said.pop("profile", None), folder, wanted["profile"]):
            said = {key: value for key, value in said.items() if key not in OF_ONE_MACHINE}
    elif said.get("profile") is not None:
        said["profile"] = located(said["profile"], folder)
    for named, beside in ((said, folder), (wanted, HERE)):
        named |= {key: str((beside / named[key]).absolute()) for key in FILES if named.get(key)}
    values = said | wanted
    if values.get("profile") is not None:
        values = {"backend": find_profile(values["profile"]).backend} | values
    return parse(values, MachineConfig, "[machine]")


def _same(named: str | None, folder: Path, asked: str) -> bool:
    """Whether a campaign means the machine that is asked for; it may mean one that is not here."""
    try:
        return named is not None and located(named, folder) == asked
    except ConfigError:
        return False
