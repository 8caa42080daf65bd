"""What is wrong or doubtful in a machine profile, though each value alone is possible."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hydragnn_hpo.config.filling import FIELD, FOLDER_FIELDS
from hydragnn_hpo.config.site import cores_of
from hydragnn_hpo.config.variables import GIVEN_BY_US, VISIBLE, misspelt, resembles

if TYPE_CHECKING:
    from hydragnn_hpo.config.machine import ProfileConfig

DEVICES_OF = {
    "cpu": {""},
    "cuda": {"", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"},
    "xpu": {"", "ZE_AFFINITY_MASK"},
}
"""Variables that show devices, by what torch calls them."""


def wrong(profile: "ProfileConfig") -> Iterator[str]:
    """Give what must be mended before the profile is used, a sentence each."""
    yield from _wrong_variables(profile)
    yield from _wrong_folders(profile)
    yield from _wrong_cores(profile)
    yield from _wrong_devices(profile)


def doubtful(profile: "ProfileConfig") -> Iterator[str]:
    """Give what is probably not meant, a sentence each."""
    for place, name, _ in _variables(profile):
        if meant := resembles(name):
            yield f"{place}.{name}: no library that we know reads it. Did you mean {meant}?"
    layout = profile.layout
    for slot, text in enumerate(layout.cores_of_slot):
        if layout.cores and (beyond := [c for c in cores_of(text) if c >= layout.cores]):
            yield (
                f"layout.cores_of_slot: core {beyond[0]} of slot {slot} is a second thread of a "
                f"core, or is not there: the host has {layout.cores}."
            )
    for nic in dict.fromkeys(layout.nic_of_slot):
        if nic not in profile.interfaces:
            yield f"layout.nic_of_slot: '{nic}' is not among interfaces."
    for name, text in profile.rank.folders.items():
        if "{trial}" not in text:
            yield f"rank.folders.{name}: trials share it, as it has no {{trial}} in it."
    yield from _doubtful_batch(profile)


def _doubtful_batch(profile: "ProfileConfig") -> Iterator[str]:
    batch = profile.batch
    if batch.scheduler == "none" and (batch.directives or batch.queue):
        yield "batch: there are directives, but no scheduler that would read them."
    if batch.scheduler == "pbs" and profile.backend in ("slurm", "steps"):
        yield f"batch.scheduler is 'pbs', but the backend '{profile.backend}' needs Slurm."
    if batch.scheduler == "pbs" and any(text.startswith("--") for text in batch.directives):
        yield "batch.directives: PBS has no options that begin with --."


def _variables(profile: "ProfileConfig") -> Iterator[tuple[str, str, str]]:
    """Give place, name and value of each variable that is set."""
    rank = profile.rank
    tables = {
        "rank.environment": rank.environment,
        "rank.one_host": rank.one_host,
        "rank.many_hosts": rank.many_hosts,
        "rank.folders": rank.folders,
        "batch.environment": profile.batch.environment,
    }
    for place, table in tables.items():
        yield from ((place, name, value) for name, value in table.items())


def _wrong_variables(profile: "ProfileConfig") -> Iterator[str]:
    for place, name, value in _variables(profile):
        if meant := misspelt(name):
            yield f"{place}.{name}: nothing reads this name; write {meant}."
        elif name in GIVEN_BY_US:
            yield f"{place}.{name}: each rank gets its own: leave it out."
        elif name in VISIBLE:
            yield f"{place}.{name}: it would show all ranks the same devices: use rank.visible."
        elif name == "FI_MR_CACHE_MONITOR" and value == "memhooks":
            yield f"{place}.{name}: memhooks deadlocks with RCCL: write kdreg2 or userfaultfd."
    rank = profile.rank
    if rank.accelerator and rank.visible not in DEVICES_OF[rank.accelerator]:
        yield f"rank.visible: {rank.visible} does not show devices of '{rank.accelerator}'."


def _wrong_folders(profile: "ProfileConfig") -> Iterator[str]:
    for name, text in profile.rank.folders.items():
        odd = [word for word in FIELD.findall(text) if word not in FOLDER_FIELDS]
        if not odd and re.search(r"[{}]", FIELD.sub("", text)):
            odd = [text]
        for word in odd:
            known = ", ".join(f"{{{known}}}" for known in sorted(FOLDER_FIELDS))
            yield f"rank.folders.{name}: '{word}' is not filled in. Known: {known}."
        if not text.startswith(("/", "{scratch}")):
            yield f"rank.folders.{name}: begin it with {{scratch}} or /."


def _wrong_cores(profile: "ProfileConfig") -> Iterator[str]:
    reserved = set(cores_of(profile.layout.reserved))
    owner: dict[int, int] = {}
    for slot, text in enumerate(profile.layout.cores_of_slot):
        cores = cores_of(text)
        if not cores:
            yield f"layout.cores_of_slot: slot {slot} has no cores: give it one at least."
        if kept := sorted(reserved.intersection(cores)):
            yield (
                f"layout.cores_of_slot: core {kept[0]} of slot {slot} is reserved: take it out "
                "there or here."
            )
        if taken := [core for core in cores if core in owner]:
            yield (
                f"layout.cores_of_slot: slots {owner[taken[0]]} and {slot} both have core "
                f"{taken[0]}: give each its own."
            )
        owner |= {core: slot for core in cores if core not in owner}


def _wrong_devices(profile: "ProfileConfig") -> Iterator[str]:
    times = Counter(profile.layout.device_of_slot)
    if len(set(times.values())) > 1:
        device, most = times.most_common(1)[0]
        yield (
            f"layout.device_of_slot: device {device} has {most} slots, others have fewer: "
            "name each once, or each equally often to share them."
        )
