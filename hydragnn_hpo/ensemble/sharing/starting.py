"""Predict on ranks of our own: started by any backend, watched, and their parts joined."""

import time
from collections.abc import Callable
from pathlib import Path

from hydragnn_hpo.campaign.backends import backend_on
from hydragnn_hpo.campaign.lease import FAILED, FINISHED, Lease
from hydragnn_hpo.config.campaign import MachineConfig
from hydragnn_hpo.ensemble.sharing.claims import Claims
from hydragnn_hpo.ensemble.sharing.crew import LOG, Crew
from hydragnn_hpo.ensemble.sharing.job import claims_of, failure_of, forget_failure
from hydragnn_hpo.ensemble.sharing.sharing import name_of
from hydragnn_hpo.ensemble.sharing.together import lost_pieces
from hydragnn_hpo.ensemble.streaming.order import Order
from hydragnn_hpo.ensemble.streaming.parts import Header, Parts, Piece
from hydragnn_hpo.ensemble.streaming.work import Outcome, Work
from hydragnn_hpo.errors import ConfigError, HydraError, JobError
from hydragnn_hpo.files import passes, storage

TOGETHER = ("steps", "mpiexec")
"""Backends that start a launcher for every job: one job holds all ranks."""

LOOK_SECONDS = 1.0
"""Between two looks at what is done."""

Tell = Callable[[Header, bool], None]


def predict_on(order: Order, work: Work, machine: MachineConfig, tell: Tell) -> Outcome:
    """Start ranks, wait until all is predicted, and join it.

    Args:
        order: what to predict.
        work: the same, opened here.
        machine: on what.
        tell: is called with each piece, and whether it was there before.

    Raises:
        HydraError: it cannot be done, or ranks ended before it was.
    """
    if not machine.shared_files:
        raise ConfigError("predicting on ranks needs files that all hosts see; see shared_files.")
    folder = order.parts.folder / "launch"
    with storage(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    lease = Lease(folder)
    watch = _Watch(order, tell, lease)
    forget_failure(order)
    why = FAILED
    try:
        with Claims(claims_of(order)) as claims:
            claims.forget_dead()
            watch.look(before=True)
            if order.parts.whole(work.lots) is None:
                _start(order, machine, folder, watch)
            watch.look()
            if lost := _lost(order.parts, work, claims):
                raise lost_pieces(order, lost)
        why = FINISHED
    finally:
        lease.release(why)
        if not (folder / LOG).exists():  # nobody was started
            order.parts.leave()
    outcome = work.join()
    if outcome is None:
        raise JobError(f"{order.out}: pieces are missing; repeat the command to go on.")
    return outcome


def _start(order: Order, machine: MachineConfig, folder: Path, watch: "_Watch") -> None:
    """Have a rank on every slot until nothing is left to do."""
    with backend_on(machine, folder) as backend:
        together = machine.backend in TOGETHER
        Crew(backend, folder, order.as_json(), together=together).run(watch)


class _Watch:
    """Looks at what ranks have done."""

    def __init__(self, order: Order, tell: Tell, lease: Lease) -> None:
        self._order, self._tell, self._lease = order, tell, lease
        self._known: set[Piece] = set()
        self._looked = 0.0

    def __call__(self) -> None:
        """Look now and then; raise what a rank has failed with."""
        self._lease.renew()
        if time.monotonic() > self._looked + LOOK_SECONDS:
            self._looked = time.monotonic()
            try:
                failure = failure_of(self._order)
                self.look()
            except (HydraError, OSError) as error:  # files may be back at the next look
                if not passes(error):
                    raise
            else:
                if failure:
                    raise failure

    def look(self, before: bool = False) -> None:
        """Tell of what is new."""
        parts = self._order.parts
        for piece in sorted(set(parts.done()) - self._known):
            if header := parts.header(piece):
                self._known.add(piece)
                self._tell(header, before)


def _lost(parts: Parts, work: Work, claims: Claims) -> list[Piece]:
    """Give the pieces at which too many ranks have ended."""
    if parts.whole(work.lots) is not None:
        return []
    known = parts.done()
    near = []
    for lot in range(work.lots):
        most = max((piece.number for piece in known if piece.lot == lot), default=0)
        near += [Piece(lot, number) for number in range(most + 2)]
    return [piece for piece in near if claims.is_lost(name_of(piece))]
