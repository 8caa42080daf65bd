"""Have some slots sum over their ranks, and read what came out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.files import read_json, storage
from hydragnn_hpo.launching.job import Job, Slot

MB = 2**20
SIZES = {"cpu": (MB, 4 * MB, 16 * MB)}
"""Bytes to sum by kind of device; gloo needs a second for what a GPU sends in a millisecond."""

DEVICE_SIZES = (MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB)

JOIN_SECONDS = 60.0
"""How long ranks wait for each other by default."""


class Probe:
    """One job of kind ``probe``, from its order to its answer."""

    def __init__(
        self, folder: Path, name: str, slots: Sequence[Slot], seconds: float = JOIN_SECONDS
    ) -> None:
        """Make its folder.

        Args:
            folder: to put a folder of its own into; all hosts see it, or it is carried.
            name: of the job, new with each one, and of its folder.
            slots: of its ranks, in rank order.
            seconds: how long ranks wait for each other.
        """
        self.name, self.slots, self.seconds = name, tuple(slots), seconds
        self.folder = folder / name
        with storage(self.folder):
            self.folder.mkdir(mode=0o700, parents=True)
        self.log, self.file = self.folder / "log", self.folder / "answer.json"

    def job(self) -> Job:
        """Give the order for the backend."""
        device = self.slots[0].device.partition(":")[0]
        spec = {
            "answer": str(self.file.resolve()),
            "sizes": list(SIZES.get(device, DEVICE_SIZES)),
            "one_host": len({slot.host for slot in self.slots}) == 1,
            "seconds": self.seconds,
        }
        return Job(
            id=self.name,
            kind="probe",
            width=len(self.slots),
            spec=spec,
            log=self.log,
            lease=self.folder / "lease",
            watch=None,
            slots=self.slots,
            folder=self.folder,
        )

    def answer(self) -> dict[str, Any]:
        """Read what came out once the job has ended, see ``training.ranks.probe.gathered``.

        Raises:
            JobError: there is no answer, or it is an error.
        """
        if not self.file.exists():
            raise JobError(f"the ranks of {self.name} ended without an answer: see {self.log}.")
        values: dict[str, Any] = read_json(self.file)
        if "error" in values:
            raise JobError(f"{values['error']} (see {self.log}).")
        return values
