"""Python interface for scripts and notebooks: data to a campaign, a campaign to its result.

``init``, ``Campaign`` and ``Run`` do what the commands ``init``, ``plan`` and ``run`` and those on
results do, by the same functions. What ``import hydragnn_hpo`` lists in ``__all__`` is stable: see
there.
"""

import html
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from hydragnn_hpo.campaign import Drained, find_cards, make_backend, open_run, require_campaign
from hydragnn_hpo.config import CampaignConfig, CardConfig
from hydragnn_hpo.errors import ConfigError, RunError, StorageError, unknown
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.pipeline import (
    InitRequest,
    InitResult,
    RunSettings,
    check_campaign_file,
    describe_data,
    describe_search,
    describe_split,
    explain_units,
    forget_run,
    init_from_card,
    init_from_files,
    is_card,
    load_campaign,
    make_shutdown_request,
    plan_campaign,
    run_campaign,
    write_files,
)
from hydragnn_hpo.planning import CampaignPlan, PlanRequest
from hydragnn_hpo.report import FIGURES, RunProgress
from hydragnn_hpo.report.best_config import BestTrial
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.resources import find_resource

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

    from hydragnn_hpo.data import GraphStore
    from hydragnn_hpo.ensemble import Ensemble
    from hydragnn_hpo.file_records import RunSummary

PathText = str | os.PathLike[str]
"""What stands for a path."""

MACHINE = {
    "slots": "slots",
    "backend": "backend",
    "machine": "profile",
    "pack": "pack",
    "container": "container",
}
"""Key of the campaign's ``[machine]`` by the word for it here and on the command line."""


def init(
    files: PathText | Sequence[PathText],
    minutes: float | None = 10.0,
    *,
    conv: str | Sequence[str] = (),
    target: str | Sequence[str] = (),
    unit: Mapping[str, str] | None = None,
    trunks: bool = True,
    weight: str = "",
    out: PathText | None = None,
) -> "Campaign":
    """Inspect data, and write a commented card and campaign that fit it and this machine.

    Args:
        files: data files or folders that make one data set; or one card, a path or shipped name.
        minutes: time for the whole campaign on this machine; None, for a card, fits it to none.
        conv: search only these convs.
        target: predict only these targets, even one that looks like a mask or a copy.
        unit: unit by property of a data file, such as ``{"energy": "Hartree"}``.
        trunks: let atoms of crystals begin from features of a foundation model, too.
        weight: property of the files, or attribute of the card, by which the loss of each structure
            is multiplied in training.
        out: folder of both files; for a card the campaign file, by default NAME_search.toml.

    Returns:
        The campaign; its ``notes`` and ``guessed`` say what to check before it is run.

    Raises:
        ConfigError: an argument makes no sense, or the files exist.
        DataError: the data cannot be read, or hold nothing to learn.
    """
    several = [files] if isinstance(files, str | os.PathLike) else files
    names = [os.fspath(name) for name in several]
    if not names or not all(names):
        raise ConfigError("no files are named: name data files, folders, or a card.")
    if minutes is not None and not 1.0 <= minutes <= 1e5:
        raise ConfigError(f"minutes is {minutes:g}: choose a number from 1 to 100000.")
    request = InitRequest(_names(conv), _names(target), minutes, trunks, weight)
    if is_card(names):
        if unit:
            raise ConfigError("unit is for data files: leave it out, a card says its units itself.")
        path = Path(f"{Path(names[0]).stem}_search.toml" if out is None else out)
        write_files({path: init_from_card(names[0], request)})
        return Campaign.load(path)
    return _init_from_files([*map(Path, names)], request, unit or {}, Path(out or ""))


def _init_from_files(
    paths: Sequence[Path], request: InitRequest, units: Mapping[str, str], folder: Path
) -> "Campaign":
    """Write card and campaign of data files, and return the campaign with what was guessed."""
    made = init_from_files(paths, request, units, folder)
    write_files({made.card: made.card_text, made.campaign: made.campaign_text})
    campaign = Campaign.load(made.campaign)
    campaign.notes = tuple(_notes(made))
    targets = made.inspection.proposals.targets
    campaign.guessed = {t.name: t.unit.name for t in targets if t.unit.sure == "guessed"}
    return campaign


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _notes(made: InitResult) -> Iterator[str]:
    """Yield what the data hold, what was chosen, and what to check."""
    yield from describe_data(made.inspection)
    yield from describe_split(made.inspection)
    yield from (f"WARNING: {warning}" for warning in made.inspection.warnings)
    yield from explain_units(made)
    yield from describe_search(made)


class Campaign:
    """A campaign file: what is searched, on which data.

    Attributes:
        path: the file.
        config: its settings, checked.
        notes: sentences of ``init`` about the data, the search and what to check.
        guessed: units that ``init`` guessed, by target.
    """

    def __init__(self, path: Path, config: CampaignConfig) -> None:
        """Hold a campaign that is loaded already, see ``load``.

        Args:
            path: its file.
            config: its settings.
        """
        self.path, self.config = path, config
        self.notes: tuple[str, ...] = ()
        self.guessed: dict[str, str] = {}

    @classmethod
    def load(cls, source: PathText) -> "Campaign":
        """Load a campaign: a TOML file, or the name of a shipped one such as ``quickstart``.

        Raises:
            ConfigError: there is no such file, or something in it is wrong.
        """
        path = find_resource(os.fspath(source), "workflows")
        return cls(path, load_campaign(path))

    @property
    def name(self) -> str:
        """Name of the campaign."""
        return self.config.name

    @property
    def cards(self) -> dict[str, CardConfig]:
        """What its data are.

        Returns:
            Cards by name; none where trials are a command.
        """
        if self.config.command is not None:
            return {}
        return {card.name: card for card in find_cards(self.config, self.path).values()}

    @property
    def card(self) -> CardConfig:
        """The card of its only data set.

        Raises:
            ConfigError: it has several data sets, or none.
        """
        cards = self.cards
        if len(cards) != 1:
            listed = ", ".join(cards) or "none"
            raise ConfigError(
                f"{self.path}: has {len(cards)} data sets ({listed}): choose from 'cards'."
            )
        return next(iter(cards.values()))

    def plan(
        self,
        *,
        hosts: int | None = None,
        trials: int | None = None,
        structures: int | None = None,
        failures: float = 0.0,
        **overrides: JsonValue,
    ) -> CampaignPlan:
        """Forecast time and cost of the campaign on a machine; nothing is started.

        Args:
            hosts: number of hosts; all of the machine if left out.
            trials: number of trials; the campaign's if left out.
            structures: structures of each data set, if the data is not here.
            failures: expected failures per host and hour.
            overrides: as for ``run``, such as ``machine="frontier"``; ``slots`` are those of a
                host.

        Raises:
            ConfigError: campaign or machine are wrong, or no drawn configuration is a valid trial.
            DataError: nothing is known about the data.
        """
        request = PlanRequest(hosts, None, trials, structures, failures)
        return plan_campaign(self._override(overrides), self.path, request)

    def run(
        self, run_dir: PathText | None = None, progress: bool = True, **overrides: JsonValue
    ) -> "Run":
        """Run the campaign to its end, or go on with it: from data to one ensemble file.

        Ctrl-C, or *interrupt* in a notebook, pauses; running it again in the same directory goes
        on. In a thread other than the main one nothing pauses it.

        Args:
            run_dir: run directory; ``runs/NAME`` if left out.
            progress: whether to show the progress: a live table on a terminal and in a notebook,
                lines elsewhere.
            overrides: ``slots``, ``backend``, ``machine``, ``pack`` and ``container`` as on the
                command line; values of the campaign file, such as ``search={"trials": 12}``.

        Raises:
            HydraError: something is wrong with the campaign, its data or its directory.
            KeyboardInterrupt: it was paused.
        """
        config = self._override(overrides)
        target = Path("runs") / config.name if run_dir is None else Path(run_dir)
        cards = check_campaign_file(config, self.path, target)
        opened = open_run(config, target)
        settings = RunSettings(
            make_backend=partial(make_backend, config, opened.path),
            pause=make_shutdown_request(),
            display=RunProgress(config.search.trials, quiet=not progress),
            warn=_warn_of_report,
        )
        try:
            run_campaign(config, opened, cards, settings)
        except (ConfigError, StorageError):
            forget_run(opened)
            raise
        except (KeyboardInterrupt, Drained) as why:
            reason = (str(why) or "paused").rstrip(".")
            raise KeyboardInterrupt(f"{reason}; run it again to go on with {target}.") from None
        return Run(target)

    def _override(self, overrides: Mapping[str, JsonValue]) -> CampaignConfig:
        """Return the settings with changes.

        Raises:
            ConfigError: there is no such setting, or a value is wrong.
        """
        known = (*MACHINE, *CampaignConfig.model_fields)
        for name in overrides:
            if name not in known:
                raise ConfigError(unknown("setting", name, known))
        tables = {k: v for k, v in overrides.items() if k not in MACHINE or isinstance(v, dict)}
        words = {MACHINE[k]: v for k, v in overrides.items() if k not in tables}
        return load_campaign(self.path, tables, **cast("dict[str, str | int | None]", words))

    def __repr__(self) -> str:
        search = self.config.search
        data = ", ".join(entry.card for entry in self.config.data)
        rungs = " -> ".join(map(str, search.rungs))
        return (
            f"Campaign '{self.name}' ({self.path}): {search.trials} trials by {search.brain}, "
            f"epochs {rungs}; data {data or 'none'}"
        )

    def _repr_html_(self) -> str:
        """Show the campaign, and the notes of ``init``."""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return f"<p>{html.escape(repr(self))}</p>" + (f"<ul>{notes}</ul>" if notes else "")


def _warn_of_report(run: Path, error: Exception) -> None:
    """Warn that the report could not be written."""
    warnings.warn(f"no report was written ({error}); try Run({str(run)!r}).report().", stacklevel=2)


class Run:
    """A run directory: trials, ensemble, report. The campaign may be running.

    Attributes:
        path: the directory.
    """

    def __init__(self, path: PathText) -> None:
        """Open a run directory.

        Raises:
            RunError: it holds no campaign.
        """
        self.path = Path(path)
        self._dir = RunDir(self.path)
        require_campaign(self._dir)
        self._facts: tuple[tuple[int, int], Facts] | None = None
        self._ensemble: tuple[tuple[int, int], Ensemble] | None = None

    @property
    def facts(self) -> Facts:
        """The content of the directory; read again whenever the journal has grown."""
        from hydragnn_hpo.report import read_facts

        stamp = _stamp(self._dir.journal)
        if self._facts is None or self._facts[0] != stamp:
            self._facts = stamp, read_facts(self._dir)
        return self._facts[1]

    @property
    def trials(self) -> "pandas.DataFrame":
        """All trials in the order of proposal: status, results, costs, searched values.

        ``frame.attrs["units"]`` has the unit of each column.
        """
        from hydragnn_hpo.report.export_tables import make_run_frame

        return make_run_frame(self.facts, "trials")

    @property
    def epochs(self) -> "pandas.DataFrame":
        """All epochs of all trials, in the order of training."""
        from hydragnn_hpo.report.export_tables import make_run_frame

        return make_run_frame(self.facts, "epochs")

    @property
    def best(self) -> BestTrial:
        """The best trial so far: name, searched values, configuration, errors, folder.

        Raises:
            RunError: no trial has a result yet.
        """
        from hydragnn_hpo.report.best_config import read_best_trial

        return read_best_trial(self.facts)

    @property
    def ensemble(self) -> "Ensemble":
        """The ensemble, on the CPU; ``Ensemble.load`` has more choices.

        Raises:
            RunError: it is not built yet.
        """
        from hydragnn_hpo.ensemble import Ensemble

        path = self._dir.ensemble
        if not path.exists():
            raise RunError(f"{path}: is not built yet: let the campaign go on to its end.")
        stamp = _stamp(path)
        if self._ensemble is None or self._ensemble[0] != stamp:
            self._ensemble = stamp, Ensemble.load(path)
        return self._ensemble[1]

    @property
    def summary(self) -> "RunSummary":
        """The content of ``summary.json``: ensemble, leaderboard, use of the machine.

        Raises:
            RunError: the campaign has not finished.
        """
        if not self._dir.summary.exists():
            raise RunError(f"{self.path}: has not finished: let the campaign go on to its end.")
        return cast("RunSummary", read_json(self._dir.summary))

    def report(self, out: PathText | None = None) -> Path:
        """Write the report, one HTML file, and return its path.

        Args:
            out: the file, NAME.html; ``RUN/report/report.html`` if left out.
        """
        from hydragnn_hpo.report import write_report

        return write_report(self._dir, None if out is None else Path(out))

    @property
    def figures(self) -> tuple[str, ...]:
        """Names that ``figure`` knows.

        Returns:
            Keys of ``report.FIGURES``.
        """
        return tuple(FIGURES)

    def figure(self, name: str, of: str | None = None) -> "plotly.graph_objects.Figure":
        """Return a chart of the report as a plotly figure.

        Args:
            name: one of ``figures``, such as ``parity``.
            of: what it is of: a head (``parity``), a parameter (``slice``), a cost (``pareto``,
                ``importance``); the first if left out.

        Raises:
            ConfigError: there is no such name.
            RunError: the run has nothing to show for it yet.
        """
        from hydragnn_hpo.report.plotly_figures import make_plotly_figure

        return make_plotly_figure(self.facts, name, of)

    def __repr__(self) -> str:
        state, config = self.facts.state, self.facts.config
        ended = state.count("stopped", "completed", "failed", "cancelled")
        course = "finished" if state.finished else "not finished"
        return (
            f"Run of campaign '{config.name}' ({self.path}), {course}: {ended} of "
            f"{len(state.trials)} trials at rest"
        )

    def _repr_html_(self) -> str:
        """Show how the run stands, and the errors of its ensemble on the test split."""
        text = f"<p>{html.escape(repr(self))}</p>"
        table = self.facts.ensemble
        if table is None:
            return text
        titles = ("head", "unit", "test MAE", "MAE of the mean", "share in 90 % interval")
        rows = ["".join(f"<th>{title}</th>" for title in titles)]
        for name, head in table["heads"].items():
            scores = (head["test_mae"], head["mean_baseline_mae"], head["coverage90"])
            cells = (name, head["unit"], *("-" if s is None else f"{s:.4g}" for s in scores))
            rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
        return f"{text}<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _stamp(path: Path) -> tuple[int, int]:
    """Return what changes when a file is written: its time and size; zeros without a file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def open_store(path: PathText) -> "GraphStore":
    """Open a graph store, ``NAME.bp``, as ``dataset build`` and campaigns make them.

    Raises:
        DataError: there is no store, or it is damaged.
        StorageError: it cannot be read.
    """
    from hydragnn_hpo.data import GraphStore
    from hydragnn_hpo.data import open_store as open_graphs

    return GraphStore(Path(path), open_graphs(Path(path)))
