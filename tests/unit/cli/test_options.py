"""What holds for the options of all commands."""

from typer.main import get_command

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.cli.reference_pages import read_commands


def test_no_number_of_an_option_may_be_infinite():
    kinds = {
        f"{verb.name} {c.written}": c.kind
        for verb in read_commands(get_command(app))
        for c in verb.choices
    }
    numbers = {name: kind for name, kind in kinds.items() if kind.startswith("number")}
    assert {"init --minutes", "serve --max-mb", "status --interval"} <= numbers.keys()
    assert [name for name, kind in numbers.items() if "<=" not in kind] == []
