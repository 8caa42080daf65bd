"""The leaderboard: one goal ranks, several have a front."""

from hydragnn_hpo.campaign.leaderboard import rank_trials
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.cli.tables import console, leaderboard_table


def board(**scores):
    state = State()
    for name, score in scores.items():
        state.add(Trial(name, {"x": 1.5}, until=4, status="stopped", score=score, objective=0.5))
    state.add(Trial("failed", {"x": 2.0}, until=4, status="failed", reason="diverged"))
    return rank_trials(state)


def test_one_goal_has_places_and_no_front():
    rows = board(a=0.3, b=0.1, c=0.2).rows
    assert [(row.rank, row.trial, row.front) for row in rows] == [
        (1, "b", None), (2, "c", None), (3, "a", None), (None, "failed", None),
    ]  # fmt: skip


def test_of_several_goals_the_front_is_kept():
    """a is the most exact, c the cheapest, b between them; d is worse than b at both."""
    rows = board(a=(0.1, 9.0), b=(0.2, 5.0), c=(0.4, 1.0), d=(0.3, 6.0)).rows
    assert {row.trial: row.front for row in rows} == {
        "a": True, "b": True, "c": True, "d": False, "failed": None,
    }  # fmt: skip
    assert rows[3].trial == "d", "who is dominated comes last"


def test_the_table_shows_goals_and_searched_keys_of_a_command():
    table = leaderboard_table(board(a=(0.1, 9.0), d=(0.3, 10.0)))
    names = [str(column.header) for column in table.columns]
    assert names == ["#", "trial", "x", "epochs", "ranks", "goal 1", "goal 2", "front", "status"]
    assert [str(cell) for cell in table.columns[7].cells] == ["yes", "", ""]


def test_brackets_in_a_value_are_no_markup(capsys):
    state = State()
    state.add(Trial("a", {"solver": "[fast]"}, until=4, status="stopped", objective=0.5))
    console().print(leaderboard_table(rank_trials(state)))
    assert "[fast]" in capsys.readouterr().out
