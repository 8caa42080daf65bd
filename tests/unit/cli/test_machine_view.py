"""Machine profiles on the terminal and as JSON."""

import json

from typer.testing import CliRunner

from hydragnn_hpo.cli.machine_command import app, to_plain
from hydragnn_hpo.config.machine import known_profiles, read_profile


def run(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "frontier"\nname = "mine"\nhosts = 64\n'
        '[rank.many_hosts]\nNCCL_CROSS_NIC = "1"\n[rank.folders]\nMINE = "{scratch}/mine"\n'
    )
    return path


def test_every_value_has_an_origin(tmp_path):
    path = own(tmp_path)
    actual = json.loads(run("show", path, "--json"))
    assert actual == to_plain(read_profile(str(path)))
    shipped = "launch/machines/frontier.toml"
    origins = actual["origins"]
    assert actual["files"] == [str(path), shipped]
    assert (actual["values"]["hosts"], origins["hosts"]) == (64, str(path))
    assert origins["layout.cores_of_slot"] == origins["rank.many_hosts.NCCL_NET"] == shipped
    assert origins["rank.many_hosts.NCCL_CROSS_NIC"] == str(path)
    assert origins["batch.environment"] == origins["process_gb"] == "default"
    assert [line for line in actual["warnings"] if "rank.folders.MINE: trials share it" in line]
    assert "extends" not in actual["values"], "there is nothing left of it"


def test_values_and_origins_have_the_same_keys():
    def keys(values, before=""):
        for key, value in values.items():
            if isinstance(value, dict) and value:
                yield from keys(value, f"{before}{key}.")
            else:
                yield before + key

    for name in known_profiles():
        result = json.loads(run("show", name, "--json"))
        assert set(keys(result["values"])) == set(result["origins"])
        assert run("show", name).startswith(f"{name}: ")


def test_all_profiles_are_listed():
    assert run("show").startswith("workstation: ")
    rows = json.loads(run("list", "--json"))
    assert [row["name"] for row in rows] == list(known_profiles())
    listed = run("list")
    assert all(name in listed for name in known_profiles())


def test_what_a_user_wrote_is_no_markup(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "workstation"\ndescription = "[red]cheap[/red] [/]"\n')
    assert "[red]cheap[/red] [/]" in run("show", path)
