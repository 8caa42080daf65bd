"""``machine``: from the command line to exit code and sentence."""


def test_a_profile_of_ones_own_is_shown_with_its_origins(hpo):
    (hpo.folder / "mine.toml").write_text('extends = "frontier"\nname = "mine"\nhosts = 64\n')
    found = hpo.json("machine", "show", "mine.toml")
    assert found["values"]["hosts"] == 64
    assert found["origins"]["hosts"] == "mine.toml"
    assert found["origins"]["rank.visible"] == "launch/machines/frontier.toml"


def test_wrong_profiles_are_refused_in_a_sentence(hpo):
    hpo.refused("machine", "show", "frontir", says=("Did you mean 'frontier'",))
    hpo.refused("machine", "show", "nowhere.toml", says=("nowhere.toml", "no such file"))
    for name, text, says in (
        ("circle", 'extends = "circle.toml"', "in a circle"),
        ("typo", 'extends = "frontier"\n[rank.many_hosts]\nFI_CXI_RDV_PROTO = "x"', "RDZV_PROTO"),
        ("shell", 'extends = "frontier"\nscratch = "/x/$(id)"', "only variables"),
        ("cores", 'extends = "perlmutter"\n[layout]\nreserved = "0"', "core 0 of slot 3"),
        ("no", "name = 3", "'name'"),
    ):
        (hpo.folder / f"{name}.toml").write_text(text + "\n")
        hpo.refused("machine", "show", f"{name}.toml", says=(f"{name}.toml", says))
