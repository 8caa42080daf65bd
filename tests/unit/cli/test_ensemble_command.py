"""How ``ensemble pick`` shows what it picked."""

from hydragnn_hpo.cli.ensemble_command import _picks_table
from hydragnn_hpo.cli.tables import console


def test_brackets_in_the_name_of_a_structure_are_no_markup(capsys):
    entry = {"pick": 1, "id": "runs[/x]/a[red].xyz:7", "score": 1.5, "distance": None}
    counts = {"read": 1, "bad": 0}
    plain = {"picked": [{**entry, "trust": "ok"}], "counts": counts}
    console().print(_picks_table({**plain, "mean_distance": 0.5, "mean_distance_top": 0.25}))
    assert "runs[/x]/a[red].xyz:7" in capsys.readouterr().out
