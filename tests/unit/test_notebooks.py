"""The notebooks of ``docs/notebooks``, cell by cell; no Jupyter is needed or installed for it.

The runner executes the code cells of a file in order in one name space, as a kernel does, and shows
the last expression of each by ``_repr_html_`` or ``repr``, as a notebook does.
"""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(source: str, where: str, names: dict[str, Any]) -> Any:
    """Execute a cell, and return the value of its last line if that is an expression."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), where, "eval"), names)


def show(value: Any) -> str:
    drawn = getattr(value, "_repr_html_", None)
    return repr(value) if drawn is None else drawn()


@pytest.fixture
def run_notebook(tmp_path, monkeypatch):
    def run(name: str) -> tuple[dict[str, Any], list[str]]:
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {"__name__": "__main__"}
        outputs = []
        for number, source in enumerate(code_cells(FOLDER / f"{name}.ipynb"), start=1):
            value = run_cell(source, f"{name}, cell {number}", names)
            outputs.append("" if value is None else show(value))
        return names, outputs

    return run


def test_the_runner_works_as_a_kernel_does():
    names: dict[str, Any] = {}
    assert run_cell("a = 2\na + 1", "x", names) == 3
    assert run_cell("b = a", "x", names) is None
    assert names["b"] == 2
    with pytest.raises(ZeroDivisionError):
        run_cell("1 / 0", "x", names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_magic(path):
    """Outputs of one machine would stand in every later change; magic runs in IPython alone."""
    whole = json.loads(path.read_text())
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in whole["cells"]}) == len(whole["cells"])
    assert whole["cells"][0]["cell_type"] == "markdown"
    for cell in whole["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            ast.parse("".join(cell["source"]))


def test_both_are_here():
    assert [path.stem for path in NOTEBOOKS] == ["our_convs_in_pyg", "own_file_to_error_bars"]


@pytest.mark.release
def test_own_file_to_error_bars(run_notebook):
    names, outputs = run_notebook("own_file_to_error_bars")
    run, table = names["run"], names["table"]
    searched = run.trials[run.trials["parent"].isna()]
    assert sorted(searched["epochs"]) == [4, 4, 12, 12]
    assert len(run.trials) == 4 + 2 * 5, "the two best on five folds"
    assert list(table.structure) == [
        f"{n} {atoms.symbols.formula.format('hill')}" for n, atoms in enumerate(names["new"], 1)
    ]
    spread = table.truth.std()
    assert (table.truth - table.energy).abs().mean() < spread, "worse than the mean"
    assert names["inside"].mean() > 0.5
    assert (table.energy_std > 0).all()
    assert "unseen element Au" in names["prediction"].trust
    assert names["figure"].layout.title.text.startswith("energy: MAE")
    assert (run.path / "report" / "report.html").exists()
    assert names["campaign"].guessed["energy"] == "eV"
    assert [head for head in run.facts.config.trial["heads"]] == ["energy"]
    assert any("<table" in text for text in outputs)


@pytest.mark.release
def test_our_convs_in_pyg(run_notebook):
    names, _ = run_notebook("our_convs_in_pyg")
    assert len(names["store"]) == 1332, "148 molecules and 8 copies of each, see the card"
    assert names["after"] < names["before"]
    assert names["invariant"]
    assert names["equivariant"]
    assert names["vectors"].abs().max() > 1e-3
