"""The files a user writes, and the config that reads each."""

from dataclasses import dataclass

from hydragnn_hpo.cli.reference.keys import Table, tables
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.config.machine import ProfileConfig
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.trial import PlacementConfig, TrialConfig

PARTS = ("model", "heads", "training", "parallel")
"""Tables that a trial has, and that a campaign gives to all of its trials."""


@dataclass(frozen=True)
class File:
    """One kind of file."""

    title: str
    says: str
    config: type[Config]
    prefix: str
    """Before a key's name in its anchor, so that each is there once."""
    parts: tuple[str, ...] = ()
    """Tables that stand here; all of them if empty."""
    without: tuple[str, ...] = ()
    """Tables that stand elsewhere."""
    under: str = ""
    """Table of the file under which these tables are written."""

    def tables(self) -> list[Table]:
        """Give its tables, the top first."""

        def here(table: Table) -> bool:
            first = table.name.partition(".")[0]
            return (not self.parts or first in self.parts) and first not in self.without

        return [table for table in tables(self.config) if here(table)]

    def within(self, table: Table) -> str:
        """Give the line that opens a table in this file."""
        return table.heading.replace("[", f"[{self.under}", 1) if self.under else table.heading


FILES = (
    File(
        "Campaign",
        "`campaign.toml`: what is searched, on which data, and how far. `run`, `plan` and "
        "`submit` read it. Its `[trial]` holds what all trials share and its `[space]` what is "
        "searched: both take the keys of [a trial](#a-trial). A list of choices may stand in place "
        'of a whole `[space.KEY]`: `"model.conv" = ["painn", "schnet"]`.',
        CampaignConfig,
        "campaign.",
    ),
    File(
        "A trial",
        "One training. In a campaign these tables stand under `[trial]`, as `[trial.training]`; in "
        "a `trial.toml` as `[training]`; and any key may be searched by its dotted name: "
        '`"training.learning_rate" = { low = 1e-3, high = 1e-2, log = true }` in `[space]`.',
        TrialConfig,
        "",
        parts=PARTS,
        under="trial.",
    ),
    File(
        "`trial.toml`",
        "What `hydragnn-hpo trial DIR` trains: the tables above, at the top of the file, and "
        "these. A campaign writes one for each trial.",
        TrialConfig,
        "trial.",
        without=PARTS,
    ),
    File(
        "`placement.toml`",
        "Where and how far one attempt of a trial runs. The campaign writes it; nobody else needs "
        "to.",
        PlacementConfig,
        "placement.",
    ),
    File(
        "Card",
        "What a data file holds. `dataset build` and `run` read it; `init FILE` writes a first "
        "one.",
        CardConfig,
        "card.",
    ),
    File(
        "Machine profile",
        "A machine, for `--machine` and `machine.profile`. One's own begins with `extends` and "
        "says only what is different, see [launch/](../../launch/README.md#ones-own).",
        ProfileConfig,
        "profile.",
    ),
)
