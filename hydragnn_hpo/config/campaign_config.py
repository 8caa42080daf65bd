"""A whole campaign, from data to ensemble: the file a user writes. Read by ``campaign``."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from hydragnn_hpo.config.command_config import RESERVED, CommandConfig
from hydragnn_hpo.config.data_config import MixedConfig, Name
from hydragnn_hpo.config.machine_checks import BackendName
from hydragnn_hpo.config.schema import AnyTables, Config, unknown_key
from hydragnn_hpo.config.search_config import SearchConfig, Space
from hydragnn_hpo.config.trial_config import check_ratios
from hydragnn_hpo.config.trunk_specs import TrunkFile, TrunkName


class CampaignDataConfig(MixedConfig):
    """One data set of a campaign. Read by the ``build`` job."""

    card: str
    """Name of a shipped card, or path of a card (relative to the campaign file)."""


class EnsembleConfig(Config):
    """How the best trials become one ensemble. Read by ``ensemble_build.build``."""

    fit: Literal["split", "cross"] = "split"
    """Structures that members learn from. ``split``: the trials of the search are the members,
    trained on the training split; ``sel`` weights and ``cal`` calibrates them. ``cross``: the best
    configurations train again on folds of all structures but those of ``test``, and each net is
    weighted and calibrated on the fold that it has not seen, so that every label trains."""

    configurations: Annotated[int, Field(gt=0, le=100)] = 2
    """Best configurations that ``cross`` trains on each fold."""

    folds: Annotated[int, Field(ge=2, le=100)] = 5
    """Folds of ``cross``; fewer where there are fewer groups of structures."""

    nets: Annotated[int, Field(ge=0, le=10**4)] = 0
    """Nets of ``cross`` that predict, at least one of each configuration: what predicting costs. 0:
    all, ``configurations`` times ``folds``. All are trained, and judge the error intervals."""

    members: Annotated[int, Field(gt=0, le=1000)] = 6
    """Largest number of members; ``top`` takes as many."""

    method: Literal["auto", "greedy", "top"] = "auto"
    """How members are weighted. ``top``: the K best on ``val``, equally. ``greedy``: by their
    errors on ``val`` and ``sel``, closer to equal weights the fewer independent groups of
    structures these hold; members that do not help are left out. ``auto``: as ``greedy``."""

    per_head: bool = True
    """Whether ``greedy`` weights the members for each head separately; otherwise all heads share
    one set of weights."""

    rounds: Annotated[int, Field(gt=0, le=10**4)] = 12
    """Number of draws of each greedy selection, with replacement."""

    local_descriptors: Literal["auto", "never"] = "auto"
    """Whether a regression on the surroundings of single atoms, or on features of a foundation
    model where trials begin from them, may be a member of heads, except energies with forces or
    stress beside them, and these. ``auto``: where the members weighted by their errors have a
    clearly lower one with it, on structures that it was not fitted to; of energies by 10 %, as the
    ensemble then has no forces for the ASE calculator."""

    reseed: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of best trials that are trained again with new seeds, to the full budget, before
    members are chosen. This adds candidates without more search; 3 to 5 are usual."""

    learning_curve: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """Largest cost, as a share of that of the search, of three fits of the best configuration on a
    quarter, half and all of the training data, which tell whether more data would help. They are
    left out where this does not pay for a third of the full epochs; 0: always."""

    price: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Relative increase of the loss that greedy selection accepts to halve the
    operations per structure: 0.01 accepts 1 % more. Above 0 it prefers cheap members."""

    intervals: Literal["auto", "all", "element", "size", "chemistry"] = "auto"
    """What has error intervals of its own, drawn towards those of all where ``cal`` has few groups
    of it. ``element``: each element, for targets of atoms. ``size``: each third of the structures
    by number of atoms. ``chemistry``: each kind of anions among a structure's elements. ``auto``:
    elements for targets of atoms; for others ``chemistry``, or ``size`` where more than 90 % of
    the structures in ``cal`` are of one kind. ``all``: nothing."""

    licence: str = ""
    """Licence of the ensemble itself, such as ``CC-BY-4.0``; that of the data is in its card."""


class MachineConfig(Config):
    """What runs the trials. Read by ``campaign.backends``."""

    backend: BackendName = "local"
    """``local``: this computer. ``slurm``: the hosts of the current Slurm allocation.
    ``mpiexec``: the hosts of the current PBS job. ``ray``: a Ray cluster. Packages may bring
    others."""

    slots: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Maximum number of ranks on each host at a time; 0: one per GPU, or one per processor core
    without GPUs."""

    hosts: Annotated[int, Field(ge=0, le=10**5)] = 0
    """Number of hosts to use; 0: all. In a Ray cluster only hosts that no other job uses count."""

    lanes: Annotated[int, Field(gt=0, le=1000)] = 1
    """Slots per GPU. Several trials share a GPU if each fits into its share of the memory, as
    predicted."""

    address: str | None = None
    """``host:port`` of the head of the Ray cluster to join; needed with ``ray``."""

    interface: str | None = None
    """Network interface for communication between hosts; detected if left out."""

    profile: str | None = None
    """Machine profile: a shipped name or a path; the profile of this computer if left out."""

    pack: Annotated[str, Field(min_length=1)] | None = None
    """Packed environment (``hydragnn-hpo pack``) that every host of a Slurm allocation unpacks on
    its own disk, so that no rank imports from a shared file system."""

    container: Annotated[str, Field(min_length=1)] | None = None
    """Image file in which agents and ranks run, by the profile's ``container.command``."""

    lease_seconds: Annotated[float, Field(ge=1.0, le=86400.0)] = 10.0
    """Seconds after which a rank ends itself if its lease was not renewed. For allocations that
    share a campaign (``--join``) the default is 60, as a lost controller is replaced after 30 s."""

    sample_seconds: Annotated[float, Field(ge=0.0, le=86400.0)] = 30.0
    """Seconds between readings of each host's counters of energy, devices and load; 0: never."""

    max_width: Annotated[int, Field(gt=0, le=10**6)] = 64
    """Maximum number of ranks of a trial."""

    @model_validator(mode="before")
    @classmethod
    def _storage_is_shared(cls, values: Any) -> Any:
        """Drop ``shared_files = true``, which earlier versions wrote; refuse the rest."""
        if not isinstance(values, dict) or "shared_files" not in values:
            return values
        if values["shared_files"] is not True:
            raise ValueError(
                "'shared_files = false' is gone: all hosts must see the run directory. Put it on "
                "a file system that they all mount (--run) and drop the key."
            )
        return {key: value for key, value in values.items() if key != "shared_files"}

    @model_validator(mode="after")
    def _software_comes_one_way(self) -> Self:
        if self.pack and self.container:
            raise ValueError("software comes by 'pack' or in a 'container': drop one of them.")
        return self


class LaunchConfig(Config):
    """How a campaign starts on the hosts of its allocation. Read by ``campaign.dispatch``."""

    min_hosts: Annotated[int, Field(ge=0, le=10**5)] = 0
    """Fewest hosts that must start for the campaign to go on. 0: half of those of the allocation,
    rounded up; 1: it goes on with any."""


class CampaignConfig(Config):
    """A campaign. Read by ``campaign.controller``."""

    name: Name
    """Name of the campaign; its run directory is ``runs/NAME`` unless given."""

    seed: NonNegativeInt = 0
    """Seed from which all other seeds derive, so that a campaign can be repeated (Law 5)."""

    data: AnyTables[CampaignDataConfig] = ()
    """The data sets: one ``[[data]]`` table for each; none with a ``[command]``."""

    shared: tuple[Name, ...] = ()
    """Targets that several data sets have in common, under one name and one head."""

    trial: dict[str, Any] = {}
    """Values common to all trials: ``model``, ``heads``, ``training``, ``parallel``; with a
    ``[command]``, any keys that it reads."""

    space: Space
    """Searched keys and their ranges."""

    trunks: dict[TrunkName, TrunkFile] = {}
    """Foundation models of the user's, by the name that ``model.embedding`` has for them."""

    search: SearchConfig
    """Search algorithm (brain), number of trials, rungs."""

    ensemble: EnsembleConfig = EnsembleConfig()
    """Selection and calibration of the ensemble."""

    machine: MachineConfig = MachineConfig()
    """The machine and its backend."""

    launch: LaunchConfig = LaunchConfig()
    """How it starts on its hosts."""

    command: CommandConfig | None = None
    """A command to run as a trial in place of a training."""

    @model_validator(mode="after")
    def _folds_go_alone(self) -> Self:
        cross = self.ensemble.fit == "cross"
        if cross and self.ensemble.reseed:
            raise ValueError(
                "ensemble.fit = 'cross' trains the best again on folds, ensemble.reseed on the "
                "training split: drop one."
            )
        if cross and self.command is not None:
            raise ValueError("ensemble.fit = 'cross' is for trainings of ours: drop it.")
        return self

    @model_validator(mode="after")
    def _nets_are_kept_of_each(self) -> Self:
        nets, least = self.ensemble.nets, self.ensemble.configurations
        if nets and self.ensemble.fit == "split":
            raise ValueError("ensemble.nets is for ensemble.fit = 'cross': set members instead.")
        if 0 < nets < least:
            raise ValueError(
                f"ensemble.nets is {nets}, fewer than one net for each of {least} configurations: "
                "raise it, or lower ensemble.configurations."
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _is_no_card(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and {"files", "targets"} <= set(values):
            raise ValueError(
                "is a card, which says what data are; a campaign says what is searched: "
                "'hydragnn-hpo init CARD --out search.toml' writes one."
            )
        return values

    @model_validator(mode="after")
    def _trial_has_only_known_parts(self) -> Self:
        if self.command is not None:
            return self._command_goes_alone()
        if not self.data:
            raise ValueError("'data' is missing; add it.")
        check_ratios(self.data)
        parts = ("heads", "model", "parallel", "training")
        for key in sorted(set(self.trial) - set(parts)):
            raise ValueError(unknown_key(f"trial.{key}", key, parts))
        return self

    def _command_goes_alone(self) -> Self:
        if self.ensemble.reseed:
            raise ValueError(
                "ensemble.reseed is for trainings of ours: drop it, a command has no ensemble."
            )
        if self.data:
            raise ValueError("a campaign has either [[data]] or a [command]: drop one.")
        for key in (key for key in RESERVED if key in self.trial or key in self.space):
            raise ValueError(f"'{key}' of a trial is written by the campaign: rename yours.")
        return self
