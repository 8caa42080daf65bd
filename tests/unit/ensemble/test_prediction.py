"""Predictions as tables, structure by structure, with the numbers of the CSV of ``predict``."""

import csv
import sys
import zipfile

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from typer.testing import CliRunner

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.ensemble import Ensemble
from hydragnn_hpo.errors import ConfigError


@pytest.fixture(scope="module")
def ensemble(built_zip):
    return Ensemble.load(built_zip)


@pytest.fixture(scope="module")
def structures():
    named = molecule("H2O")
    named.info["name"] = "water"
    return [named, molecule("CH4"), molecule("C6H6")]


@pytest.fixture(scope="module")
def tables(structures, built_zip, tmp_path_factory):
    """What ``predict`` writes for the same structures: a table of structures, one of atoms."""
    folder = tmp_path_factory.mktemp("csv")
    ase.io.write(folder / "in.xyz", structures, format="extxyz")
    words = ["predict", str(folder / "in.xyz"), "--ensemble", str(built_zip)]
    done = CliRunner().invoke(app, [*words, "--out", str(folder / "out.csv")])
    assert done.exit_code == 0, done.output
    written = [folder / name for name in ("out.csv", "out.nodes.csv")]
    return [list(csv.DictReader(path.read_text().splitlines())) for path in written]


@pytest.mark.parametrize(("table", "place"), [("structures", 0), ("atoms", 1)])
def test_the_table_has_the_numbers_and_titles_of_the_csv_file(
    ensemble, structures, tables, table, place
):
    frame = ensemble.predict(structures).to_frame(table)
    rows = tables[place]
    assert len(frame) == len(rows) == (3, 3 + 5 + 12)[place]
    head = ("energy", "charge")[place]
    ours = [title for title in frame.columns if title.startswith(head)]
    assert ours == [title for title in rows[0] if title.startswith(head)]
    assert len(ours) == 5
    for title in ours:
        expected = [float(row[title]) for row in rows]
        np.testing.assert_allclose(frame[title], expected, rtol=1e-8, atol=1e-12)
    if table == "structures":
        assert list(frame["trust"]) == [row["trust"] for row in rows]
    else:
        assert [str(atom) for atom in frame["atom"]] == [row["atom"] for row in rows]
        assert list(frame["element"]) == [row["element"] for row in rows]


def test_structures_have_their_names_or_number_and_formula(ensemble, structures):
    frame = ensemble.predict(structures).to_frame()
    assert list(frame["structure"]) == ["water", "2 CH4", "3 C6H6"]
    assert list(ensemble.predict(molecule("H2O")).to_frame()["structure"]) == ["1 H2O"]
    names = ensemble.predict(structures).to_frame("atoms")["structure"]
    assert names.value_counts().to_dict() == {"water": 3, "2 CH4": 5, "3 C6H6": 12}


def test_atoms_are_joined_to_structures_of_one_name(ensemble):
    frames = [molecule("H2O"), molecule("CH4")]
    for atoms in frames:
        atoms.info["name"] = "frame"
    prediction = ensemble.predict(frames)
    atoms = prediction.to_frame("atoms")
    assert list(atoms["structure_index"]) == [0] * 3 + [1] * 5
    joined = atoms.join(prediction.to_frame()[["energy"]], on="structure_index")
    assert list(joined["energy"].unique()) == prediction["energy"].mean[:, 0].tolist()


def test_units_stand_beside_the_table(ensemble, structures):
    units = ensemble.predict(structures).to_frame().attrs["units"]
    assert units["energy"] == units["energy_std"] == "eV/atom"
    assert "structure" not in units


def test_an_answer_is_iterated_structure_by_structure(ensemble, structures):
    whole = ensemble.predict(structures)
    assert len(whole) == 3
    for row, (atoms, one) in enumerate(zip(structures, whole, strict=True)):
        alone = ensemble.predict(atoms)
        assert one.symbols == tuple(atoms.symbols)
        assert one["energy"].mean.shape == (1, 1)
        assert one["charge"].mean.shape == (len(atoms), 1)
        assert one["charge"].lo90.shape == (len(atoms), 1)
        np.testing.assert_allclose(one["energy"].mean, alone["energy"].mean, rtol=1e-6)
        np.testing.assert_allclose(one["charge"].std, alone["charge"].std, rtol=1e-5)
        assert one.trust == whole.trust[row]
    assert whole[-1].name == "3 C6H6"
    with pytest.raises(IndexError):
        whole[3]


def test_levels_and_members_become_columns(ensemble, structures):
    frame = ensemble.predict(structures, levels=(50,), members=True).to_frame()
    trials = [m.trial for m in ensemble.manifest.members if "energy" in m.weights]
    assert {"energy_lo50", "energy_hi50", *(f"energy_{t}" for t in trials)} <= set(frame.columns)
    mean = sum(
        m.weights["energy"] * frame[f"energy_{m.trial}"]
        for m in ensemble.manifest.members
        if "energy" in m.weights
    )
    np.testing.assert_allclose(mean, frame["energy"], rtol=1e-9)


def test_rows_of_a_store_keep_their_names(ensemble, built_zip):
    from hydragnn_hpo.data import open_store

    columns = open_store(built_zip.parent / "data" / "toy.bp")
    chosen = np.array([7, 2])
    frame = ensemble.predict(columns, chosen).to_frame("atoms")
    counts = columns.num_nodes()[chosen]
    assert list(frame["structure"]) == ["m7"] * counts[0] + ["m2"] * counts[1]
    assert list(frame["atom"]) == [*range(counts[0]), *range(counts[1])]


def test_nothing_predicted_is_an_empty_table(ensemble):
    nothing = ensemble.predict([])
    assert len(nothing) == 0
    assert list(nothing) == []
    assert nothing.to_frame().shape == (0, 7)
    assert nothing.to_frame("atoms").shape == (0, 9)


def test_wrong_names_are_one_sentence(ensemble, structures):
    made = ensemble.predict(structures)
    with pytest.raises(ConfigError, match="unknown table 'atom'. Did you mean 'atoms'?"):
        made.to_frame("atom")
    with pytest.raises(ConfigError, match="unknown head 'energi'. Did you mean 'energy'?"):
        made["energi"]
    with pytest.raises(ConfigError, match="unknown head 'charges'. Did you mean 'charge'?"):
        made[0]["charges"]


def test_without_pandas_it_says_what_to_install(ensemble, structures, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"a table needs pandas, .*hpo\[report\]"):
        ensemble.predict(structures).to_frame()


def test_what_a_shell_and_a_notebook_show(ensemble, structures):
    made = ensemble.predict(structures)
    text = repr(made)
    assert text.startswith("Prediction of 3 structures\nwater: energy ")
    assert (
        f"energy {made['energy'].mean[1, 0]:.5g} +- {made['energy'].std[1, 0]:.2g} eV/atom" in text
    )
    assert "charge 12 x 1 e" in text
    assert "... and 3 more" in repr(ensemble.predict([molecule("H2O")] * 8))
    page = made._repr_html_()
    assert page.count("<tr") == 1 + 3
    assert "<td>water</td>" in page
    assert "energy [eV/atom]" in page


def test_text_of_others_is_no_markup(ensemble):
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.8]], info={"name": "<script>alert(1)</script>"})
    assert "<script>" not in ensemble.predict(atoms)._repr_html_()


def test_an_ensemble_says_what_it_is(ensemble, built_zip):
    text = repr(ensemble)
    count = len(ensemble.manifest.members)
    assert text.startswith(f"Ensemble of {count} member")
    assert "campaign 'toy' for energy [eV/atom], charge [e]; elements H C N O" in text
    page = ensemble._repr_html_()
    mae = ensemble.manifest.evaluation["energy"]["test_mae"]
    assert f"<td>{mae:.4g}</td>" in page
    assert page.count("<tr>") == 1 + 2
    with zipfile.ZipFile(built_zip) as archive:
        card = next(name for name in archive.namelist() if name.endswith("MODEL_CARD.md"))
        assert ensemble.model_card() == archive.read(card).decode()
