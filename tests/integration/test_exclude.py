"""Lists of hosts to leave alone, given to commands: kept, and refused when they are bad."""


def test_a_bad_list_is_refused_before_anything_is_done(hpo):
    campaign = hpo.root / "workflows" / "ci.toml"
    hpo.refused(
        "run", campaign, "--run", "run", "--exclude", "gone", says=("gone: cannot be read",)
    )
    bad = hpo.folder / "bad.hosts"
    bad.write_text("node1\n$(reboot)\x1b[2J\n")
    for arguments in (("run", campaign, "--run", "run"), ("doctor",)):
        message = hpo.refused(*arguments, "--exclude", bad, says=("bad.hosts, line 2",))
        assert message.isprintable()
    assert not (hpo.folder / "run").exists()


def test_what_a_doctor_wrote_stays_when_nothing_could_start(hpo, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    run = hpo.folder / "run"
    run.mkdir()
    (run / "exclude.hosts").write_text("node7  # devices (Slurm): 7, expected 8\n")
    campaign = hpo.campaign(machine={"backend": "slurm"})
    hpo.card(hpo.molecules(30))

    hpo.refused("run", campaign, "--run", run, says=("no Slurm allocation",))

    assert [path.name for path in run.iterdir()] == ["exclude.hosts"]
