"""The table of a doctor: short for any number of hosts, and worst first."""

import io

from rich.console import Console
from typer.testing import CliRunner

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.cli.doctor_command import MOST_LETTERS, findings_table, rows_of
from hydragnn_hpo.host_checks import Finding


def drawn(findings, width=110) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(findings_table(findings, "Doctor"))
    return out.getvalue()


def test_a_whole_machine_fits_one_screen():
    hosts = [f"frontier{number:05d}" for number in range(8192)]
    findings = []
    for check in ("memory", "link"):
        for number, host in enumerate(hosts):
            state = "wrong" if number % 97 == 3 else "ok"
            findings.append(
                Finding(check, state, f"{number} GB", "9 GB", hosts=(host,), figure=number)
            )
    rows = rows_of(findings)
    assert len(rows) == 2 * 2
    assert rows[0].where.startswith("85 hosts: frontier[00003,00100")
    assert rows[1].where == "8,107 of 8,192"
    assert all(len(row.where) <= MOST_LETTERS for row in rows)
    assert (rows[0].observed, rows[1].observed) == ("3 GB to 8151 GB", "0 GB to 8191 GB")
    assert len(drawn(findings).splitlines()) < 20


def test_hosts_are_named_as_lists_pairs_or_here():
    findings = [
        Finding("memory", "ok", "1 GB", hosts=(host,)) for host in ("n3", "n1", "n2", "n10")
    ]
    findings += [Finding("link", "slow", "9", hosts=("n1", "n3")), Finding("scheduler", "ok", "x")]
    assert [row.where for row in rows_of(findings)] == ["all 4", "n1 - n3", "here"]
    more = Finding("other", "ok", "x", hosts=("n9",))
    assert rows_of([*findings[:2], more])[0].where == "n[1,3]"


def test_markup_and_control_letters_of_hosts_stay_letters():
    message = drawn([Finding("c", "wrong", "[red]x[/red]\x1b[31m", hosts=("[bold]a",))])
    assert "[red]x[/red]" in message.replace("\n", "")
    assert "[bold]a" in message
    assert "\x1b" not in message


def test_a_command_that_names_a_hostile_host_is_shown_with_its_controls_spelt_out(monkeypatch):
    for name in ("SLURM_JOB_ID", "PBS_NODEFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "x\x9b31m\u202e")
    result = CliRunner().invoke(app, ["doctor", "--dry-run"])
    assert result.exit_code == 0
    assert r"x\x9b31m\u202e" in result.output
    assert not {"\x9b", "\u202e"} & set(result.output)
