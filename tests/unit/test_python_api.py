"""What ``import hydragnn_hpo`` offers, against the command line, the exports and hand counts."""

import csv
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import ase.io
import numpy as np
import pandas
import pytest
from ase.build import molecule
from made_campaign import make_campaign
from typer.testing import CliRunner

import hydragnn_hpo as hh
from hydragnn_hpo import python_api
from hydragnn_hpo.campaign import Drained
from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.errors import ConfigError, DataError, RunError
from hydragnn_hpo.pipeline import RunSettings

ROOT = Path(__file__).parents[2]


# -- the process -------------------------------------------------------------------------

STREAM = "import adios2; adios2.Stream('a.bp', 'w').close(); import os; print(os.environ['HOME'])"
NAMELESS = "import pwd\ndef none(uid): raise KeyError(uid)\npwd.getpwuid = none\n"


@pytest.mark.parametrize(
    ("before", "home"), [("", pwd.getpwuid(os.getuid()).pw_dir), (NAMELESS, "/")]
)
def test_without_home_adios2_writes_where_it_would_end_by_a_segmentation_fault(
    tmp_path, before, home
):
    """``getenv("HOME")`` is a null pointer then: alone, ADIOS2 2.11 dies of signal 11."""
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    environment["PYTHONPATH"] = str(ROOT)

    def run(code):
        line = [sys.executable, "-c", code]
        return subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert run(STREAM).returncode == -signal.SIGSEGV
    done = run(f"{before}import hydragnn_hpo\n{STREAM}")
    assert (done.returncode, done.stdout) == (0, f"{home}\n"), done.stderr


def test_a_removed_current_folder_is_named(tmp_path):
    """The loader of torch's libraries ends such a process with words about oneMKL."""
    code = "import os; os.rmdir(os.getcwd())\nfrom hydragnn_hpo.__main__ import main; main()"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "gone",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "the current folder was removed: change into one that exists.\n"


# -- the names ---------------------------------------------------------------------------


def test_the_import_is_light_and_the_names_are_there():
    code = (
        "import sys, hydragnn_hpo as hh\n"
        "heavy = {'torch', 'pandas', 'plotly', 'typer', 'numpy', 'pydantic', 'torch_geometric'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert set(hh.__all__) - {'__version__'} == set(dir(hh)), dir(hh)\n"
        "hh.HydraError\n"
        "assert not heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_name_is_what_its_module_defines():
    homes = {name: getattr(hh, name).__module__ for name in hh.__all__ if name != "__version__"}
    assert all(home.startswith("hydragnn_hpo.") for home in homes.values())
    assert (homes["Ensemble"], homes["as_pyg"], homes["init"]) == (
        "hydragnn_hpo.ensemble.inference",
        "hydragnn_hpo.model.pyg_conv",
        "hydragnn_hpo.python_api",
    )


def test_a_name_that_is_not_there_is_reported_as_python_does():
    with pytest.raises(AttributeError, match="module 'hydragnn_hpo' has no attribute 'Ensembl'"):
        hh.Ensembl  # noqa: B018


def test_the_guide_names_everything_that_is_stable():
    page = (ROOT / "docs" / "guide" / "python.md").read_text()
    missing = [n for n in hh.__all__ if n != "__version__" and f"`{n}" not in page]
    assert not missing


def test_an_error_is_one_sentence_in_a_notebook():
    """IPython calls this method of an exception in place of printing its traceback."""
    assert hh.HydraError("no.")._render_traceback_() == ["HydraError: no."]


# -- init --------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _usual_speed():
    """Measuring this computer takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        speed = "hydragnn_hpo.pipeline.machine_speed.measure_slowdown"
        patch.setattr(speed, lambda profile: 1.0)
        yield


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a data file, and with the card and campaign that ``init`` makes of it."""
    folder = tmp_path_factory.mktemp("prepared")
    frames = [molecule(("H2O", "CH4", "NH3")[k % 3]) for k in range(24)]
    for number, atoms in enumerate(frames):
        atoms.rattle(0.05, seed=number)
        atoms.info["energy"] = float(atoms.get_all_distances().sum())
    ase.io.write(folder / "mine.extxyz", frames, format="extxyz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = hh.init(["mine.extxyz"], minutes=2)
    return folder, made


@pytest.fixture
def data(prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(prepared[0] / "mine.extxyz", "mine.extxyz"))


@pytest.fixture
def campaign(data, prepared):
    """The prepared campaign, in a folder of the test's own."""
    for name in ("mine.toml", "mine_search.toml"):
        shutil.copy(prepared[0] / name, name)
    return hh.Campaign.load("mine_search.toml")


def test_init_writes_what_the_command_writes(data, tmp_path):
    campaign = hh.init(data, minutes=5, conv="schnet", unit={"energy": "eV"}, out="here")
    words = ["--minutes", "5", "--conv", "schnet", "--unit", "energy=eV", "--out", "there"]
    done = CliRunner().invoke(app, ["init", str(data), *words])
    assert done.exit_code == 0, done.output
    here, there = tmp_path / "here", tmp_path / "there"
    for name in ("mine.toml", "mine_search.toml"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    assert campaign.path == Path("here/mine_search.toml")
    assert campaign.name == "mine_start"
    assert campaign.card.targets["energy"].unit == "eV"
    assert list(campaign.cards) == ["mine"]
    assert campaign.guessed == {}


def test_init_says_what_it_guessed(prepared):
    folder, campaign = prepared
    assert campaign.guessed == {"energy": "eV"}
    notes = "\n".join(campaign.notes)
    assert "24 structures (all read, all usable)" in notes
    assert "UNITS GUESSED: energy in eV" in notes
    assert "WARNING: 24 structures are few" in notes
    assert f"<li>{campaign.notes[0]}</li>" in campaign._repr_html_()
    assert hh.Campaign.load(folder / campaign.path).notes == ()


def test_init_takes_a_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = hh.init("g2_xtb", minutes=None, target="homo_lumo_gap")
    assert campaign.path == Path("g2_xtb_search.toml")
    text = CliRunner().invoke(app, ["init", "g2_xtb", "--target", "homo_lumo_gap"]).output
    assert campaign.path.read_text() == text
    with pytest.raises(ConfigError, match="unit is for data files"):
        hh.init("g2_xtb", unit={"gap": "eV"})


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({"files": []}, ConfigError, "no files are named"),
        ({"files": ""}, ConfigError, "no files are named"),
        ({"files": "mine.extxyz", "minutes": 0}, ConfigError, "minutes is 0: choose"),
        ({"files": "nothing.xyz"}, DataError, "nothing.xyz"),
        ({"files": "mine.extxyz", "conv": ["schent"]}, ConfigError, "unknown conv 'schent'"),
    ],
)
def test_what_init_cannot_do_is_one_sentence(data, arguments, kind, sentence):
    with pytest.raises(kind, match=sentence):
        hh.init(**arguments)
    assert not list(Path().glob("*.toml"))


def test_init_overwrites_nothing(campaign):
    with pytest.raises(ConfigError, match="mine_search.toml: is there already"):
        hh.init("mine.extxyz", minutes=2)


# -- campaigns ---------------------------------------------------------------------------


def test_a_shipped_campaign_is_loaded_by_name():
    campaign = hh.Campaign.load("quickstart")
    assert campaign.path == ROOT / "workflows" / "quickstart.toml"
    assert repr(campaign).startswith(f"Campaign '{campaign.name}' (")
    with pytest.raises(ConfigError, match="Did you mean 'quickstart'"):
        hh.Campaign.load("quickstar")


@pytest.fixture
def started(monkeypatch):
    """Stand in for the controller, and note with what it is started."""
    notes = []

    def note(config, opened, cards, settings):
        assert isinstance(settings, RunSettings)
        notes.append((config, opened, cards, settings))
        opened.journal.touch()

    monkeypatch.setattr(python_api, "run_campaign", note)
    return notes


def test_a_plan_is_that_of_the_command(campaign):
    size = {"hosts": 2, "trials": 5, "structures": 9_000_000}
    plan = campaign.plan(**size, machine="frontier", search={"brain": "sobol"})
    words = [f"--{name}={number}" for name, number in size.items()]
    words += ["--machine=frontier", "--set=search.brain=sobol"]
    done = CliRunner().invoke(app, ["plan", str(campaign.path), *words, "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert plan.data == shown["data"]
    forecast = plan.forecast
    expected = shown["forecast"]
    assert (forecast.trials, forecast.machine.slots) == (expected["trials"], 16)
    assert forecast.simulated.makespan == expected["makespan"]
    assert [advice.sentence for advice in plan.advice] == expected["advice"]
    assert [advice.cause for advice in plan.advice] == ["unfinished", "tail"]
    assert repr(plan).startswith(f"{campaign.name} on frontier: 5 trials in ")
    assert not Path("runs").exists()


def test_overrides_change_the_campaign_and_nothing_else(campaign, started):
    run = campaign.run("there", progress=False, slots=1, search={"trials": 19}, seed=4)
    ((config, opened, cards, settings),) = started
    assert (config.search.trials, config.seed, config.machine.slots) == (19, 4, 1)
    assert config.search.rungs == campaign.config.search.rungs
    assert (
        config.model_copy(
            update={k: getattr(campaign.config, k) for k in ("search", "seed", "machine")}
        )
        == campaign.config
    )
    assert run.path == opened.path == Path("there")
    assert list(cards.values()) == ["mine"]
    assert settings.display.quiet
    assert campaign.config.seed == 0
    assert "slots = 1" in (run.path / "campaign.toml").read_text()


def test_the_directory_is_that_of_the_command(campaign, started):
    assert campaign.run(progress=False).path == Path("runs/mine_start")
    with pytest.raises(RunError, match="holds campaign 'mine_start' with seed = 0"):
        campaign.run(progress=False, seed=5)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"slot": 2}, "unknown setting 'slot'. Did you mean 'slots'?"),
        ({"search": {"trial": 2}}, "unknown key 'search.trial'. Did you mean 'trials'?"),
        ({"slots": -1}, "slots"),
        ({"backend": "slrum"}, "slurm"),
    ],
)
def test_wrong_overrides_are_one_sentence(campaign, started, overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        campaign.run(progress=False, **overrides)
    assert not Path("runs").exists()


@pytest.mark.parametrize("why", [KeyboardInterrupt(), Drained("the allocation ends.")])
def test_a_pause_says_how_to_go_on(campaign, monkeypatch, why):
    def stop(*_):
        raise why

    monkeypatch.setattr(python_api, "run_campaign", stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        campaign.run("there", progress=False)
    begin = str(why).rstrip(".") or "paused"
    assert str(caught.value) == f"{begin}; run it again to go on with there."
    assert Path("there/campaign.toml").exists()


def test_a_campaign_that_cannot_begin_leaves_no_directory(campaign, monkeypatch):
    def refuse(*_):
        raise ConfigError("no such machine: choose another.")

    monkeypatch.setattr(python_api, "run_campaign", refuse)
    with pytest.raises(ConfigError, match="no such machine"):
        campaign.run("there", progress=False)
    assert not Path("there").exists()


@pytest.mark.slow
def test_ctrl_c_pauses_and_running_again_goes_on(campaign):
    """In this process, as in a notebook: the second run adds to the journal of the first."""
    short = {"trials": 4, "initial": 4, "finalists": 1, "rungs": [1, 2], "brain": "random"}
    overrides = {"search": short, "ensemble": {"members": 1}, "slots": 1}
    journal = Path("runs/mine_start/events.jsonl")

    def interrupt():
        while not (journal.exists() and b'"placed"' in journal.read_bytes()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="run it again to go on with runs/mine_start"):
        campaign.run(progress=False, **overrides)
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    written = journal.read_bytes()
    assert not hh.Run("runs/mine_start").facts.state.finished
    run = campaign.run(progress=False, **overrides)
    assert journal.read_bytes().startswith(written)
    assert run.facts.state.finished
    assert len(run.trials[run.trials["parent"].isna()]) == 4
    assert set(run.trials["status"]) <= {"stopped", "completed"}
    assert run.best.name in set(run.trials["trial"])
    assert len(run.ensemble.predict(molecule("H2O"))) == 1
    stores = [hh.open_store(path) for path in Path("runs/mine_start/data").glob("*.bp")]
    assert [len(store) for store in stores] == [24]
    assert sum(stores[0].splits.values()) == 24


# -- runs --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_campaign(tmp_path_factory.mktemp("api") / "run", trials=30)


@pytest.fixture(scope="module")
def exported(made, tmp_path_factory):
    """Tables of ``export --to csv``."""
    out = tmp_path_factory.mktemp("csv") / "tables"
    done = CliRunner().invoke(app, ["export", str(made.path), "--to", "csv", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return {
        path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in out.glob("*.csv")
    }


TITLES = {
    "val_mae_gap": "val_mae.gap [eV]",
    "conv": "params.model.conv",
    "learning_rate": "params.training.learning_rate",
    "heads": "params.model.options.heads",
    "objective": "objective",
    "status": "status",
    "trial": "trial",
    "parameters": "parameters",
    "slot_seconds": "slot_seconds [s]",
    "started": "started [s since 1970]",
    "time": "time [s since 1970]",
    "epoch_seconds": "epoch_seconds [s]",
}
"""Title of a column of the export by ours."""


@pytest.mark.parametrize("table", ["trials", "epochs"])
def test_tables_have_the_rows_and_values_of_the_export(made, exported, table):
    frame = getattr(hh.Run(made.path), table)
    rows = exported[table]
    assert len(frame) == len(rows) > 20
    assert len(frame.columns) == len(rows[0])
    shared = [title for title in TITLES if title in frame.columns]
    assert len(shared) >= 4
    for title in shared:
        for ours, theirs in zip(frame[title], (row[TITLES[title]] for row in rows), strict=True):
            if theirs == "":
                assert pandas.isna(ours)
            elif title in ("started", "time"):
                assert ours.timestamp() == pytest.approx(float(theirs), abs=1e-3)
            elif isinstance(ours, str):
                assert ours == theirs
            else:
                assert float(ours) == pytest.approx(float(theirs), rel=1e-9)


def test_units_stand_beside_the_table(made):
    units = hh.Run(made.path).trials.attrs["units"]
    assert units["val_mae_gap"] == "eV"
    assert units["slot_seconds"] == "s"
    assert "objective" not in units
    assert "started" not in units


def test_the_best_trial_is_the_first_of_the_leaderboard(made):
    text = CliRunner().invoke(app, ["leaderboard", str(made.path), "--json"]).output
    first = json.loads(text)["trials"][0]
    best = hh.Run(made.path).best
    assert (best.name, best.objective) == (first["trial"], first["objective"])
    assert best.val_mae == first["val_mae"]
    assert best.values == first["values"]
    assert best.epochs == first["epochs"]
    assert best.folder == made.path / "trials" / best.name
    assert best.configuration["model"]["conv"] == best.values["model.conv"]
    assert best.configuration["training"]["learning_rate"] == best.values["training.learning_rate"]


def test_the_summary_is_the_file(made):
    assert hh.Run(made.path).summary == json.loads(made.summary.read_text())


def test_the_report_is_written_where_it_says(made, tmp_path):
    out = tmp_path / "x.html"
    assert hh.Run(made.path).report(out) == out
    assert out.read_text().startswith("<!")
    assert not (made.report / "report.html").exists()


def test_what_a_run_shows_of_itself(made):
    run = hh.Run(str(made.path))
    assert "campaign 'made'" in repr(run)
    assert "finished: 30 of 30 trials at rest" in repr(run)
    mae = json.loads((made.report / "ensemble.json").read_text())["heads"]["gap"]["test_mae"]
    assert f"<td>gap</td><td>eV</td><td>{mae:.4g}</td>" in run._repr_html_()


def test_a_running_campaign_is_read_again_when_its_journal_grows(tmp_path):
    whole = make_campaign(tmp_path / "whole", trials=10)
    part = make_campaign(tmp_path / "part", trials=10, finished=False)
    run = hh.Run(part.path)
    before = len(run.epochs)
    assert "not finished" in repr(run)
    with pytest.raises(RunError, match="has not finished: let the campaign go on"):
        run.summary  # noqa: B018
    with pytest.raises(RunError, match="ensemble.zip: is not built yet"):
        run.ensemble  # noqa: B018
    with pytest.raises(RunError, match="nothing to show in figure 'parity' yet"):
        run.figure("parity")
    part.journal.write_bytes(whole.journal.read_bytes())
    assert len(run.epochs) == len(hh.Run(whole.path).epochs) > before


def test_a_folder_without_a_campaign_is_refused(tmp_path):
    with pytest.raises(RunError, match=str(tmp_path)):
        hh.Run(tmp_path)


# -- figures -----------------------------------------------------------------------------


def test_every_figure_of_the_report_has_a_name(made):
    """And each name draws: keys are read from the page itself."""
    from hydragnn_hpo.report import FIGURES
    from hydragnn_hpo.report.html_report import make_sections
    from hydragnn_hpo.report.plotly_figures import _figures, make_plotly_figure

    run = hh.Run(made.path)
    assert set(run.figures) == set(FIGURES)
    sections = {section.key: section for section in make_sections(run.facts)}
    charts = {key: [f for f, _ in _figures(s.blocks)] for key, s in sections.items()}
    for key, figures in charts.items():
        for figure in figures:
            assert FIGURES.get(figure.name.partition(".")[0]) == key or key == "costs", (
                key,
                figure.key,
            )
    quick = {name for name, section in FIGURES.items() if section != "importance"}
    for name in quick - {"slice"}:
        assert make_plotly_figure(run.facts, name).data


def test_the_parity_figure_holds_the_predictions_on_the_test_split(made):
    from safetensors.numpy import load_file

    arrays = load_file(made.report / "test_predictions.safetensors")
    figure = hh.Run(made.path).figure("parity", "gap")
    dots = [trace for trace in figure.data if trace.mode == "markers"]
    points = sorted((x, y) for trace in dots for x, y in zip(trace.x, trace.y, strict=True))
    truth = arrays["gap/truth"].ravel()
    mean = arrays["gap/mean"].ravel()
    np.testing.assert_allclose(points, sorted(zip(truth, mean, strict=True)), rtol=1e-6)
    assert figure.layout.title.text.startswith("gap: MAE")
    assert figure.layout.xaxis.title.text == "reference (eV)"
    assert {trace.marker.color for trace in dots} == {"#2563c9", "#b8252d"}
    same = hh.Run(made.path).figure("parity.gap")
    assert same.to_dict().keys() == figure.to_dict().keys()
    assert same.layout.title.text == figure.layout.title.text
    first = hh.Run(made.path).figure("parity")
    assert first.layout.title.text.startswith("energy per atom: MAE")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("pairty",), "unknown figure 'pairty'. Did you mean 'parity'?"),
        (("parity", "gaps"), "unknown parity of 'gaps'. Did you mean 'gap'?"),
        (("pareto.energi",), "unknown pareto of 'energi'. Did you mean 'energy'?"),
    ],
)
def test_wrong_names_of_figures_are_one_sentence(made, arguments, sentence):
    with pytest.raises(ConfigError) as caught:
        hh.Run(made.path).figure(*arguments)
    assert sentence in str(caught.value)


def test_a_doubtful_figure_says_so(tmp_path):
    noise = make_campaign(tmp_path / "run", trials=30, noise_only=True)
    figure = hh.Run(noise.path).figure("importance", "mae")
    assert "NOT TO BE TRUSTED" in figure.layout.title.text


# -- stores ------------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises((DataError, RunError, ConfigError)) as caught:
        hh.open_store(tmp_path / "no.bp")
    assert "no.bp" in str(caught.value)
