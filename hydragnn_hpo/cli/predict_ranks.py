"""``predict`` on several ranks: of a backend, or as whatever launcher has started us."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.errors import ConfigError, HydraError

if TYPE_CHECKING:
    from hydragnn_hpo.config.campaign import MachineConfig
    from hydragnn_hpo.ensemble.streaming.order import Order
    from hydragnn_hpo.ensemble.streaming.work import Outcome
    from hydragnn_hpo.launching.launcher_detection import LauncherInfo

RanksOption = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Ranks on each host; one per GPU or core with --backend."),
]
HostsOption = Annotated[int | None, typer.Option(min=1, help="Hosts to use; all there are.")]
BackendOption = Annotated[
    str | None, typer.Option(help="local, slurm, ray, steps or mpiexec: share the work over ranks.")
]
MachineOption = Annotated[
    str | None, typer.Option("--machine", help="Machine profile: a shipped name or a path.")
]


@dataclass(frozen=True)
class Crowd:
    """Who is to predict."""

    ranks: int | None
    hosts: int | None
    backend: str | None
    machine: str | None

    @property
    def is_asked(self) -> bool:
        """Whether ranks are to be started."""
        return any(vars(self).values())

    def settled(self) -> "MachineConfig":
        """Give the machine, with what its profile says."""
        from hydragnn_hpo.config.campaign import MachineConfig
        from hydragnn_hpo.config.machine import resolve_machine

        asked: dict[str, Any] = {"slots": self.ranks, "hosts": self.hosts, "sample_seconds": 0.0}
        asked |= {"backend": self.backend, "profile": self.machine}
        return resolve_machine(MachineConfig(), asked)


def by_ranks(
    order: "Order",
    crowd: Crowd,
    standing: "LauncherInfo | None",
    device: str,
    *,
    dry_run: bool,
    quiet: bool,
) -> bool:
    """Predict on several ranks; tell whether all failed."""
    from hydragnn_hpo.cli.predict_view import tell_outcome
    from hydragnn_hpo.ensemble.sharing.devices import AUTO

    if device != AUTO and (crowd.is_asked or standing):
        raise ConfigError("--device is for one process: each rank has the device of its slot.")
    _check(order, asked=crowd.is_asked)
    if dry_run:
        show_plan(order, crowd)
        return False
    if crowd.is_asked or standing is None:
        outcome = start_ranks(order, crowd, quiet=quiet)
    else:
        outcome = be_rank(order, standing)
    return tell_outcome(outcome, quiet=quiet)


def start_ranks(order: "Order", crowd: Crowd, *, quiet: bool) -> "Outcome":
    """Start ranks, show how far they are, and join what they did."""
    from hydragnn_hpo.cli.predict_view import Screen
    from hydragnn_hpo.ensemble.sharing.starting import predict_on

    machine = crowd.settled()
    with order.opened() as work, Screen(work.count(), quiet=quiet) as screen:
        return predict_on(
            order, work, machine, lambda header, before: screen.tell(header.structures, before)
        )


def be_rank(order: "Order", standing: "LauncherInfo") -> "Outcome":
    """Be one of the ranks that a launcher has started; only one of them comes back.

    Raises:
        Exit: our part is done, another rank has the result or the error to tell.
    """
    from hydragnn_hpo.ensemble.sharing.together import predict_together

    try:
        outcome = predict_together(order, standing.rank)
    except HydraError as error:
        if standing.rank == 0:
            raise
        raise typer.Exit(error.exit_code) from None
    if outcome is None:
        raise typer.Exit
    return outcome


def standing_here() -> "LauncherInfo | None":
    """Give our place among the ranks of a launcher, with our share of the host's cores.

    It is to be asked before torch is imported, which looks at the number of threads.
    """
    from hydragnn_hpo.launching.launcher_detection import bind_threads, detect_launcher

    standing = detect_launcher(os.environ)
    if standing is not None:
        bind_threads(os.environ, standing)
    return standing


def show_plan(order: "Order", crowd: Crowd) -> None:
    """Say what would be started."""
    from hydragnn_hpo.launching.profile_adapter import layout_of, site_of
    from hydragnn_hpo.launching.slots import detect_slots

    machine = crowd.settled()
    with order.opened(begin=lambda parts, plan: None) as work:
        count = work.count()
        known = "structures that nobody has counted" if count is None else f"{count} structures"
        typer.echo(f"{known}, {work.lots} inputs, into {order.out}")
    if done := len(order.parts.done()):
        typer.echo(f"{done} pieces are done, in {order.parts.folder}")
    if machine.backend != "local":
        typer.echo(f"would start ranks on the hosts of the backend '{machine.backend}'")
        return
    for slot in detect_slots(machine.slots, layout=layout_of(site_of(machine))):
        cores = ",".join(map(str, slot.cores))
        typer.echo(f"would start a rank on {slot.device}, cores {cores}")


def _check(order: "Order", *, asked: bool) -> None:
    """Refuse what several ranks cannot do.

    Raises:
        ConfigError: they would read standard input, or write to a screen.
    """
    who = "--ranks" if asked else "several ranks"
    if not order.out:
        raise ConfigError(f"{who} write a file: add --out NAME.csv.")
    if "-" in order.files:
        raise ConfigError(f"{who} cannot all read standard input: write it to a file first.")
