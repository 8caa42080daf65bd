"""Campaigns side by side: costs counted by hand, and what must be said before they are read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_campaign import make_campaign

from hydragnn_hpo.campaign.journal import encode
from hydragnn_hpo.cli.results_commands import compare
from hydragnn_hpo.errors import ConfigError, HydraError
from hydragnn_hpo.report.compare import (
    NEVER,
    RunComparison,
    RunTable,
    compare_runs,
    read_campaigns,
    tabulate_comparison,
)

CAMPAIGN = """
name = "{name}"
seed = 3
data = [{{card = "none"}}]
trial = {{heads = {{gap = {{weight = {weight}}}}}}}
search = {{trials = 4, finalists = 1, rungs = [2]}}

[space]
"model.layers" = {space}
"""

COMMAND = """
name = "{name}"
command = {{argv = ["tune"]}}
space = {{"tile" = [1, 2, 3, 4]}}
search = {{trials = 4, finalists = 1, rungs = [2], objective = "train_seconds"}}
"""

MakeRun = Callable[..., Path]


def trial(name: str, begin: float, end: float, **result: Any) -> list[dict[str, Any]]:
    fields = {"outcome": "completed", "attempt": 1, **result}
    values = {"model.layers": 1 + int(name[-1])}
    where = {"attempt": 1, "until": 2, "width": 1, "slots": ["a:0"]}
    return [
        {"time": begin, "event": "proposed", "trial": name, "values": values, "until": 2},
        {"time": begin, "event": "placed", "trial": name, **where},
        {"time": end, "event": "ended", "trial": name, **fields},
    ]


@pytest.fixture
def run(tmp_path: Path) -> MakeRun:
    """Make a run on two hosts of two slots: four slot-seconds, two host-seconds a second.

    Its trials end after 10, 30, 35 and 50 s: objectives 0.5, 0.3, failed, 0.4; MAEs 0.2, 0.3, -,
    0.1 eV.
    """

    def make(
        folder: str,
        name: str = "hand",
        *,
        data: str | None = "d" * 64,
        unit: str = "eV",
        weight: float = 1.0,
        space: str = "{low = 1, high = 4}",
        text: str = CAMPAIGN,
        events: list[dict[str, Any]] | None = None,
        finished: bool = True,
    ) -> Path:
        slots = ["a:0", "a:1", "b:0", "b:1"]
        opened = {"event": "opened", "units": {"gap": unit}, "slots": slots, "data": data}
        trials = events or [
            *trial("t0", 1000.0, 1010.0, objective=0.5, val_mae={"gap": 0.2}),
            *trial("t1", 1012.0, 1030.0, objective=0.3, val_mae={"gap": 0.3}),
            *trial(
                "t2", 1030.0, 1035.0, outcome="failed", reason="bug", message="x", objective=0.1
            ),
            *trial("t3", 1035.0, 1050.0, objective=0.4, val_mae={"gap": 0.1}),
        ]
        done = [{"time": 1050.0, "event": "finished"}] if finished else []
        path = tmp_path / folder
        path.mkdir(parents=True)
        campaign = text.format(name=name, weight=weight, space=space)
        (path / "campaign.toml").write_text(campaign)
        journal = [{"time": 990.0, **opened}, *trials, *done]
        (path / "events.jsonl").write_bytes(
            b"".join(encode({"epoch": 1, **event}) for event in journal)
        )
        return path

    return make


@pytest.fixture
def faster() -> list[dict[str, Any]]:
    """One trial that is as good as any after 20 s, and nothing else."""
    return trial("t0", 1000.0, 1020.0, objective=0.25, val_mae={"gap": 0.15})


def compared(*paths: Path, levels: tuple[tuple[str, float], ...] = ()) -> RunComparison:
    return compare_runs(read_campaigns(paths), levels)


def table(comparison: RunComparison, title: str) -> dict[str, Any]:
    blocks = [block for each in tabulate_comparison(comparison).values() for block in each]
    (one,) = [b for b in blocks if isinstance(b, RunTable) and b.title == title]
    return {name: tuple(cells) for name, cells in one.rows.items()}


def costs(
    comparison: RunComparison, key: str, level: float
) -> list[tuple[float, float, int] | None]:
    """Return host-seconds, wall seconds and trials by run."""
    (one,) = [r for r in comparison.reached if (r.quantity, r.level) == (key, pytest.approx(level))]
    return [c and (c.host_seconds, c.seconds, c.trials) for c in one.by.values()]


def test_costs_are_those_counted_by_hand(run: Any, faster: Any) -> None:
    """0.3 after 30 s of two hosts and two trials; 0.25 after 20 s; the worst of both is 0.3."""
    comparison = compared(run("one"), run("two", "quick", events=faster))
    assert costs(comparison, "objective", 0.3) == [(60.0, 30.0, 2), (40.0, 20.0, 1)]
    # 5 % above the best of all, 0.25: only the second came there
    assert costs(comparison, "objective", 0.2625) == [None, (40.0, 20.0, 1)]
    # the worst of 0.1 and 0.15 eV: the first run needs all its four trials, one of which failed
    assert costs(comparison, "val_mae.gap", 0.15) == [(100.0, 50.0, 4), (40.0, 20.0, 1)]
    assert comparison.same_data
    assert not comparison.warnings


def test_levels_may_be_requested(run: Any, faster: Any) -> None:
    paths = run("one"), run("two", "quick", events=faster)
    comparison = compared(*paths, levels=(("gap", 0.2), ("objective", 0.01)))
    assert costs(comparison, "val_mae.gap", 0.2) == [(20.0, 10.0, 1), (40.0, 20.0, 1)]
    assert costs(comparison, "objective", 0.01) == [None, None]
    seen = table(comparison, "host-seconds until")
    assert seen["val MAE gap 0.2 eV (asked for)"] == (20.0, 40.0)
    assert seen["objective 0.01 (asked for)"] == (NEVER, NEVER)
    assert table(comparison, "trials until")["val MAE gap 0.2 eV (asked for)"] == (1, 1)
    with pytest.raises(ConfigError, match=r"unknown quantity 'gp'. Did you mean 'gap'\?"):
        compared(*paths, levels=(("gp", 0.2),))


def test_tables_say_what_the_runs_are(run: Any, faster: Any) -> None:
    paths = run("one"), run("two", "quick", events=faster, space="[1, 2]")
    comparison = compared(*paths)
    seen = table(comparison, "campaign")
    assert seen["host-hours [h]"] == (pytest.approx(100 / 3600), pytest.approx(40 / 3600))
    assert seen["trials failed"] == (1, 0)
    assert seen["trials completed"] == (3, 1)
    assert seen["hosts"] == (2, 2)
    assert table(comparison, "error")["val MAE gap [eV]"] == (0.3, 0.15)  # of the best trial each
    assert table(comparison, "error")["best trial"] == ("t1", "t0")
    assert table(comparison, "value of the best trial")["model.layers"] == (2, 1)
    assert table(comparison, "parameter")["model.layers"] == ("1 to 4", "1, 2")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": "e" * 64}, "different data"),
        ({"data": None}, "data of some runs is not known"),
        ({"unit": "meV"}, "Head gap has different units (eV, meV)"),
        ({"weight": 2.0}, "weigh heads differently"),
        ({"finished": False}, "quick is not finished"),
    ],
)
def test_what_makes_runs_unlike_is_reported(changes: dict[str, Any], says: str, run: Any) -> None:
    comparison = compared(run("one"), run("two", "quick", **changes))
    assert any(says in warning for warning in comparison.warnings), comparison.warnings
    blocks = [block for each in tabulate_comparison(comparison).values() for block in each]
    texts = [block for block in blocks if isinstance(block, str)]
    assert any(says in text for text in texts)
    assert (
        comparison.same_data == bool(comparison.reached) == (changes.get("data", "same") == "same")
    )
    assert comparison.same_data != any("not comparable" in text for text in texts)


def test_a_guess_and_the_same_unit_are_compared_as_a_guess(run: Any) -> None:
    comparison = compared(run("one"), run("two", "quick", unit="eV (guessed)"))
    assert not any("units" in warning for warning in comparison.warnings)
    assert comparison.units["val_mae.gap"] == "eV (guessed)"


def test_heads_that_not_all_have_are_named(run: Any, tmp_path: Path) -> None:
    other = make_campaign(tmp_path / "made", trials=12)
    comparison = compared(run("one"), other.path)
    (message,) = [w for w in comparison.warnings if "not all runs have them" in w]
    assert "energy_per_atom" in message
    assert "gap" not in message.replace("energy_per_atom", "")
    assert list(comparison.units) == ["val_mae.gap"]


def test_commands_are_compared_by_their_goal(run: Any) -> None:
    slow, fast = (trial("t0", 1000.0, 1010.0, objective=None, score=score) for score in (9.0, 4.0))
    one = run("one", "a", text=COMMAND, data=None, events=slow)
    comparison = compared(one, run("two", "b", text=COMMAND, data=None, events=fast))
    assert "commands" in comparison.warnings[0]
    assert costs(comparison, "score", 9.0) == [(20.0, 10.0, 1), (20.0, 10.0, 1)]
    assert costs(comparison, "score", 4.2) == [None, (20.0, 10.0, 1)]


def test_what_is_no_comparison_is_refused(run: Any, tmp_path: Path) -> None:
    one = run("one")
    empty = run("empty", events=[{"time": 1.0, "event": "draining"}])
    for paths, says in [
        ((one,), "one run directory is nothing to compare"),
        ((one, tmp_path / "x" / ".." / "one"), "is named twice"),
        ((one, tmp_path / "none"), "holds no campaign"),
        ((one, empty), "nothing has run there yet"),
    ]:
        with pytest.raises(HydraError, match=says):
            compared(*paths)


@pytest.mark.parametrize(
    ("folders", "names", "labels"),
    [
        (("x/1", "x/2"), ("a", "b"), ["a", "b"]),
        (("x/1", "x/2"), ("a", "a"), ["1", "2"]),
        (("x/r", "y/r"), ("a", "b"), ["a", "b"]),
    ],
)
def test_runs_are_distinguished(folders: Any, names: Any, labels: list[str], run: Any) -> None:
    paths = [run(folder, name) for folder, name in zip(folders, names, strict=True)]
    assert [each.summary.label for each in read_campaigns(paths)] == labels


def test_a_unit_gives_no_orders_to_a_terminal(run: Any, capsys: Any) -> None:
    runs = [run("one", unit="eV\x1b[2J"), run("two", "quick", unit="meV\x1b[2J")]
    compare(runs)
    compare([runs[0], run("three", "quicker", unit="eV\x1b[2J")])
    printed = capsys.readouterr().out
    assert "has different units (eV\\x1b[2J" in printed
    assert "\x1b[2J" not in printed
