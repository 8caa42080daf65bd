"""What ``hydragnn-hpo serve`` says before it listens."""

import importlib.util
import socket
from pathlib import Path

import pytest

from hydragnn_hpo.cli.serve import serve
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.http_service import is_loopback, listen


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_others_get_in_only_with_a_chosen_token(
    built_zip: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.delenv("HYDRAGNN_HPO_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="choose a token"):
        serve(built_zip, host=host, dry_run=True)


def test_with_a_token_they_do_over_a_warning(
    built_zip: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRAGNN_HPO_TOKEN", "a-token-for-tests-only")
    serve(built_zip, host="0.0.0.0", dry_run=True)
    said = capsys.readouterr()
    assert "clear text" in said.err
    assert "would serve" in said.out
    assert "energy [eV/atom]" in said.out
    assert "a-token" not in said.out + said.err


def test_on_loopback_nothing_is_warned_of(
    built_zip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(built_zip, dry_run=True)
    assert capsys.readouterr().err == ""


def test_without_the_extra_it_says_what_to_install(
    built_zip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else whole(name)
    )
    with pytest.raises(ConfigError, match=r"needs uvicorn: pip install 'hydragnn-hpo\[serve\]'"):
        serve(built_zip, dry_run=True)


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)]
    + [("0.0.0.0", False), ("::", False), ("192.168.0.1", False), ("localhost.evil.org", False)],
)
def test_loopback_is_known(host: str, inside: bool) -> None:
    assert is_loopback(host) is inside


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen("127.0.0.1", port)
