"""The backends: what each of them can do, and how its transport to the hosts is opened.

A transport starts agents on hosts. One of another package joins by an entry point in the group
``hydragnn_hpo.transports``: its name is a value of ``machine.backend``, its object a
``BackendKind``. Opening one imports it; this table is light, as agents read it, too.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.launching.schedulers import Scheduler
from hydragnn_hpo.launching.transports.flux_batch import Flux
from hydragnn_hpo.launching.transports.pbs_batch import Pbs
from hydragnn_hpo.launching.transports.slurm_batch import Slurm

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hydragnn_hpo.config import MachineConfig, ProfileConfig
    from hydragnn_hpo.launching.transports.transport import Transport

logger = logging.getLogger(__name__)

GROUP = "hydragnn_hpo.transports"
"""Group of the entry points of other packages."""

OpenTransport = Callable[["MachineConfig", Path], "Transport"]
"""Opens the transport to the hosts of this process: machine and run directory -> transport.

Raises ``ConfigError`` if the machine does not have what is asked for, and ``JobError`` if what
should start agents does not answer.
"""


@dataclass(frozen=True)
class BackendKind:
    """What a backend can do."""

    open: OpenTransport | None = None
    """None: ranks are started on this computer and end with their controller."""

    join: OpenTransport | None = None
    """Opens the transport of one of several allocations, whose hosts are ``HOST@ALLOCATION``."""

    scheduler: Scheduler | None = None
    """The batch scheduler in whose jobs it runs."""

    launchers: tuple[Literal["srun", "mpiexec"], ...] = ()
    """What may start the ranks of a trial there, so that they find each other by MPI."""

    outlives: bool = False
    """Whether agents may outlive their controller, see ``Fleet``."""

    can_pack: bool = False
    """Whether it brings a packed environment to the hosts' own disks."""

    can_contain: bool = False
    """Whether its agents run in a container."""

    @property
    def tethered(self) -> bool:
        """Whether ranks end at once with their controller; others run on until a lease lapses."""
        return self.open is None

    @property
    def joins(self) -> bool:
        """Whether several allocations may serve one campaign together."""
        return self.join is not None

    @property
    def can_submit(self) -> bool:
        """Whether campaigns may be queued as batch jobs of its scheduler."""
        return self.scheduler is not None

    @property
    def launcher(self) -> Literal["srun", "mpiexec"] | None:
        """What starts ranks that need MPI; None where they have none."""
        return self.launchers[0] if self.launchers else None


def _open_slurm(machine: "MachineConfig", run: Path) -> "Transport":
    from hydragnn_hpo.launching.transports.slurm import slurm_transport

    return slurm_transport(machine, run)


def _join_slurm(machine: "MachineConfig", run: Path) -> "Transport":
    from hydragnn_hpo.launching.transports.slurm import slurm_transport

    return slurm_transport(machine, run, one_of_many=True)


def _open_mpiexec(machine: "MachineConfig", run: Path) -> "Transport":
    from hydragnn_hpo.launching.transports.mpiexec import mpiexec_transport

    return mpiexec_transport(machine, run)


def _open_ray(machine: "MachineConfig", run: Path) -> "Transport":
    from hydragnn_hpo.launching.transports.ray import RayTransport

    return RayTransport(machine, run_dir=run)


def _open_flux(machine: "MachineConfig", run: Path) -> "Transport":
    from hydragnn_hpo.launching.transports.flux import flux_transport

    return flux_transport(machine, run)


BACKENDS: dict[str, BackendKind] = {
    "slurm": BackendKind(
        _open_slurm,
        join=_join_slurm,
        scheduler=Slurm(),
        launchers=("srun", "mpiexec"),
        outlives=True,
        can_pack=True,
        can_contain=True,
    ),
    "mpiexec": BackendKind(_open_mpiexec, scheduler=Pbs(), launchers=("mpiexec",), outlives=True),
    "local": BackendKind(launchers=("mpiexec",), can_contain=True),
    "ray": BackendKind(_open_ray),
    "flux": BackendKind(_open_flux, scheduler=Flux(), outlives=True),
}
"""Every built-in backend, by its name in a campaign file."""

SCHEDULERS: dict[str, Scheduler] = {
    kind.scheduler.name: kind.scheduler for kind in BACKENDS.values() if kind.scheduler
}
"""Schedulers of the built-in backends, by ``batch.scheduler`` of a machine profile."""


def find_backend(name: str) -> BackendKind:
    """Return what a backend can do.

    Raises:
        ConfigError: there is no such backend, or its package is broken.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    points = {point.name: point for point in _entry_points()}
    if name not in points:
        raise ConfigError(f"machine.backend: {unknown('backend', name, {*BACKENDS, *points})}")
    return _load(points[name])


def name_backends(can: Callable[[BackendKind], object]) -> str:
    """Return the names of the built-in backends that can do something, for a sentence."""
    return " or ".join(f"'{name}'" for name, kind in BACKENDS.items() if can(kind))


def find_scheduler(name: str) -> Scheduler:
    """Return a batch scheduler by its name in a machine profile.

    Raises:
        ConfigError: there is no such scheduler.
    """
    if name in SCHEDULERS:
        return SCHEDULERS[name]
    schedulers = {scheduler.name: scheduler for scheduler in list_schedulers()}
    if name not in schedulers:
        raise ConfigError(f"batch.scheduler: {unknown('scheduler', name, schedulers)}")
    return schedulers[name]


def list_schedulers() -> Iterator[Scheduler]:
    """Yield the schedulers of all backends, the built-in ones first."""
    yield from SCHEDULERS.values()
    for point in _entry_points():
        try:
            kind = _load(point)
        except ConfigError as error:
            logger.warning("%s", error)
        else:
            yield from filter(None, [kind.scheduler])


def find_batch_doubts(profile: "ProfileConfig") -> Iterator[str]:
    """Yield what is probably not meant in a profile's backend and ``[batch]``, a sentence each.

    Raises:
        ConfigError: there is no such backend or scheduler.
    """
    needed = find_backend(profile.backend).scheduler
    if not profile.batch.has_scheduler:
        return
    scheduler = find_scheduler(profile.batch.scheduler)
    if needed is not None and needed.name != scheduler.name:
        yield (
            f"batch.scheduler is '{scheduler.name}', but the backend '{profile.backend}' needs "
            f"{needed.title}."
        )
    yield from scheduler.find_doubts(profile)


def _entry_points() -> Iterable["EntryPoint"]:
    from importlib.metadata import entry_points  # late: agents load little

    return entry_points(group=GROUP)


def _load(point: "EntryPoint") -> BackendKind:
    try:
        kind = point.load()
        if not isinstance(kind, BackendKind):
            raise TypeError(f"it is no BackendKind, but {type(kind).__name__}")
    except Exception as error:
        package = point.dist.name if point.dist else point.module
        raise ConfigError(
            f"the backend '{point.name}' of the package '{package}' cannot be loaded "
            f"({error}): repair or remove that package."
        ) from error
    return kind
