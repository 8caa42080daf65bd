"""The cores of a rank whose launcher has not divided its host among ranks."""

import os
from collections.abc import Collection, Mapping, MutableMapping

from hydragnn_hpo.launching.ranks.started import Standing

THREADS = "OMP_NUM_THREADS"


def own_cores(
    mask: Collection[int], on_host: int, *, local: int, local_world: int
) -> tuple[int, tuple[int, ...]]:
    """Give a rank its share of a host's cores.

    Args:
        mask: cores that it may use, as its launcher left them.
        on_host: cores that all its ranks of the host may use together.
        local: its number on the host, from 0.
        local_world: ranks on the host.

    Returns:
        Threads to use, and the cores to bind them to; none where its launcher has bound it.
    """
    share = max(1, min(len(mask), on_host // local_world))
    if len(mask) < on_host or local_world == 1:
        return share, ()
    first = local * share % len(mask)
    return share, tuple(sorted(mask)[first : first + share])


def settle_threads(environment: MutableMapping[str, str], standing: Standing) -> None:
    """Bind this process to its share, and say so in the environment; before torch is imported.

    What a person or torchrun has said of threads counts.
    """
    if THREADS in environment or standing.local is None or not standing.local_world:
        return
    mask = os.sched_getaffinity(0)
    on_host = _on_host(environment, len(mask))
    place = {"local": standing.local, "local_world": standing.local_world}
    threads, cores = own_cores(mask, on_host, **place)
    if cores:
        os.sched_setaffinity(0, cores)
    environment[THREADS] = str(threads)


def _on_host(environment: Mapping[str, str], least: int) -> int:
    """Count the cores of our launch on this host: Slurm says it, others hand their own mask on."""
    said = environment.get("SLURM_CPUS_ON_NODE", "")
    if "SLURM_STEP_ID" in environment and said.isdigit():
        return max(int(said), least)
    try:
        return max(len(os.sched_getaffinity(os.getppid())), least)
    except OSError:
        return least
