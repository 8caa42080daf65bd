"""Paths of files and folders in a run directory and in a trial directory."""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrialDir:
    """A trial's directory: configuration, attempts, checkpoints."""

    path: Path
    """The directory."""

    @property
    def config(self) -> Path:
        """Return the file with everything that the trial's result depends on; written once."""
        return self.path / "trial.toml"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of ``best.safetensors`` and ``last.safetensors``."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """Return the weights of the best epoch."""
        return self.checkpoints / "best.safetensors"

    def attempt(self, number: int) -> Path:
        """Return the directory of one attempt to run the trial, from 1."""
        return self.path / "attempts" / f"{number:03d}"

    def attempts(self) -> list[int]:
        """Return the numbers of all attempts, in ascending order."""
        return sorted(int(p.name) for p in (self.path / "attempts").glob("[0-9]*"))


@dataclass(frozen=True)
class RunDir:
    """A campaign's directory."""

    path: Path
    """The directory."""

    @property
    def campaign(self) -> Path:
        """Return the resolved campaign."""
        return self.path / "campaign.toml"

    @property
    def journal(self) -> Path:
        """Return the journal, from which all state of the campaign is computed."""
        return self.path / "events.jsonl"

    @property
    def data(self) -> Path:
        """Return the folder of stores."""
        return self.path / "data"

    @property
    def ensemble(self) -> Path:
        """Return the ensemble, the campaign's result."""
        return self.path / "ensemble.zip"

    @property
    def report(self) -> Path:
        """Return the folder of figures and tables."""
        return self.path / "report"

    @property
    def summary(self) -> Path:
        """Return the summary of a finished run, see ``file_records.RunSummary``."""
        return self.path / "summary.json"

    @property
    def requests(self) -> Path:
        """Return the folder of user requests to the controller."""
        return self.path / "requests"

    @property
    def jobs(self) -> Path:
        """Return the folder of batch jobs: scripts, logs, records."""
        return self.path / "jobs"

    @property
    def software(self) -> Path:
        """Return the packed environment that ``submit --pack auto`` makes."""
        return self.path / "software" / "environment.tar.gz"

    @property
    def trials(self) -> Path:
        """Return the folder of trials."""
        return self.path / "trials"

    @property
    def excluded(self) -> Path:
        """Return the list of hosts that the run does not use."""
        return self.path / "exclude.hosts"

    @property
    def costs(self) -> Path:
        """Return the file of measured costs."""
        return self.path / "cost.json"

    def store(self, name: str) -> Path:
        """Return the graph store of a card."""
        return self.data / f"{name}.bp"

    def trial(self, name: str) -> TrialDir:
        """Return a trial's directory."""
        return TrialDir(self.trials / name)


def derive_seed(seed: int, trial: str, purpose: str) -> int:
    """Derive a seed, as Law 5 demands, by SHA-256.

    Args:
        seed: of the campaign.
        trial: name of the trial, or of another thing that draws random numbers.
        purpose: separates the uses within a trial, such as ``training``.

    Returns:
        From 0 to 2^31 - 1.
    """
    digest = hashlib.sha256(f"{seed}/{trial}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
