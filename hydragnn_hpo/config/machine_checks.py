"""Checks of a machine profile: values that contradict each other, and misspelt variables.

No library complains of a variable it does not know: a wrong letter only makes a job slow.

Source: docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; rocm.docs.amd.com (RCCL, MIOpen,
ROCr); libfabric's fi_cxi(7) and fi_mr(3). Checked 2026-11-21.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from hydragnn_hpo.config.path_templates import FIELD, FOLDER_FIELDS

if TYPE_CHECKING:
    from hydragnn_hpo.config.machine import ProfileConfig


BackendName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)]
"""What runs trials. Packages may bring others: that there is one is checked before a start."""


def cores_of(text: str) -> tuple[int, ...]:
    """Parse a list of cores such as ``1-7,65-71``.

    Returns:
        Numbers of the cores in the order of the list; empty for an empty text.

    Raises:
        ValueError: the text is no such list, runs backwards, or names a core twice.
    """
    cores: list[int] = []
    for part in filter(None, text.split(",")):
        if not (match := re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())):
            raise ValueError(f"'{text}' is no list of cores: write it as in 1-7,65-71.")
        first = int(match[1])
        last = int(match[2] or match[1])
        if last < first:
            raise ValueError(f"'{part.strip()}' in '{text}' runs backwards: write {last}-{first}.")
        cores += range(first, last + 1)
    if len(set(cores)) != len(cores):
        raise ValueError(f"'{text}' names a core twice: name each once.")
    return tuple(cores)


TRAPS = {
    "FI_CXI_RDV_PROTO": "FI_CXI_RDZV_PROTO",
    "FI_CXI_RDV_THRESHOLD": "FI_CXI_RDZV_THRESHOLD",
    "FI_CXI_RDV_GET_MIN": "FI_CXI_RDZV_GET_MIN",
    "FI_CXI_RDV_EAGER_SIZE": "FI_CXI_RDZV_EAGER_SIZE",
    "FI_CXI_OVFLOW_BUF_SIZE": "FI_CXI_OFLOW_BUF_SIZE",
    "NCCL_NET_GDRLEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_SOCKET_IFACE": "NCCL_SOCKET_IFNAME",
}
"""Names that scripts on the web write, and that nothing reads; with what was meant."""

GIVEN_BY_US = frozenset(
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
)
"""Names that every rank gets a value of its own for."""

DEVICES_OF = {
    "cpu": {""},
    "cuda": {"", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"},
    "xpu": {"", "ZE_AFFINITY_MASK"},
}
"""Variables by which a process is told its devices, by what torch calls them."""


def misspelt(name: str) -> str | None:
    """Return what was certainly meant by a name that nothing reads; None of any other."""
    if name.startswith("MIOOPEN_"):
        return name.replace("MIOOPEN_", "MIOPEN_", 1)
    return TRAPS.get(name)


def find_errors(profile: "ProfileConfig") -> Iterator[str]:
    """Yield what must be mended before the profile is used, a sentence each."""
    slots, layout = profile.slots_per_host, profile.layout
    for key in ("cores_of_slot", "device_of_slot", "numa_of_slot", "nic_of_slot"):
        count = len(getattr(layout, key))
        if count not in (0, slots):
            yield (
                f"layout.{key} describes {count} slots, slots_per_host is {slots}: make them equal."
            )
    if profile.slot_order and sorted(profile.slot_order) != list(range(slots)):
        yield (
            f"slot_order names slots {list(profile.slot_order)}, the host has {slots}: name each "
            f"from 0 to {slots - 1} once."
        )
    sizes = [limit.hosts for limit in profile.limits]
    if sizes != sorted(set(sizes)):
        yield f"limits are of {sizes} hosts: begin with the fewest, name each once."
    times = Counter(layout.device_of_slot)
    if len(set(times.values())) > 1:
        device, most = times.most_common(1)[0]
        yield (
            f"layout.device_of_slot: device {device} has {most} slots, others have fewer: "
            "name each once, or each equally often to share them."
        )
    yield from _find_wrong_variables(profile)
    yield from _find_wrong_folders(profile)
    yield from _find_wrong_cores(profile)


def find_doubts(profile: "ProfileConfig") -> Iterator[str]:
    """Yield what is probably not meant, a sentence each."""
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
    batch = profile.batch
    if not batch.has_scheduler and (batch.directives or batch.queue):
        yield "batch: there are directives, but no scheduler that would read them."


def _variables(profile: "ProfileConfig") -> Iterator[tuple[str, str, str]]:
    """Yield place, name and value of each variable that is set."""
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


def _find_wrong_variables(profile: "ProfileConfig") -> Iterator[str]:
    for place, name, value in _variables(profile):
        if meant := misspelt(name):
            yield f"{place}.{name}: nothing reads this name; write {meant}."
        elif name in GIVEN_BY_US:
            yield f"{place}.{name}: each rank gets its own: leave it out."
        elif any(name in shown for shown in DEVICES_OF.values()):
            yield f"{place}.{name}: it would show all ranks the same devices: use rank.visible."
        elif name == "FI_MR_CACHE_MONITOR" and value == "memhooks":
            yield f"{place}.{name}: memhooks deadlocks with RCCL: write kdreg2 or userfaultfd."
    rank = profile.rank
    if rank.accelerator and rank.visible not in DEVICES_OF[rank.accelerator]:
        yield f"rank.visible: {rank.visible} does not show devices of '{rank.accelerator}'."


def _find_wrong_folders(profile: "ProfileConfig") -> Iterator[str]:
    for name, text in profile.rank.folders.items():
        odd = [word for word in FIELD.findall(text) if word not in FOLDER_FIELDS]
        if not odd and re.search(r"[{}]", FIELD.sub("", text)):
            odd = [text]
        for word in odd:
            known = ", ".join(f"{{{known}}}" for known in sorted(FOLDER_FIELDS))
            yield f"rank.folders.{name}: '{word}' is not filled in. Known: {known}."
        if not text.startswith(("/", "{scratch}")):
            yield f"rank.folders.{name}: begin it with {{scratch}} or /."


def _find_wrong_cores(profile: "ProfileConfig") -> Iterator[str]:
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
