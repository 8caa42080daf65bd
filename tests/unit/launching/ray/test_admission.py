"""Each way in which a cluster cannot be joined is one sentence; real clusters: see integration."""

import platform
import socket
import subprocess
import sys

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.ray import admission

OURS = {"ray": "9.9.9", "python": platform.python_version()}
REFUSED = {"refused": "RPC error: InvalidAuthToken"}
SILENT = {"error": "RpcError: Timed out"}


@pytest.fixture
def address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def admit(monkeypatch, address):
    """Admit a cluster that answers so to one with our token, and so to one without."""

    def answers(with_token, without):
        told = iter([with_token, without])
        monkeypatch.setattr(admission, "_probe", lambda *_: None)
        monkeypatch.setattr(admission, "_answer", lambda _: next(told))
        monkeypatch.setattr(admission, "ray_version", lambda: "9.9.9")
        admission.admit(address, {})

    return answers


def test_a_cluster_that_is_guarded_and_like_us_is_joined(admit):
    admit(OURS, REFUSED)


@pytest.mark.parametrize(
    ("with_token", "without", "said"),
    [
        (REFUSED, REFUSED, "refuses our token: set RAY_AUTH_TOKEN_PATH"),
        (OURS, OURS, "demands no token, so anybody could use what we start"),
        (OURS, SILENT, "demands no token"),
        (SILENT, SILENT, "does not answer as a Ray cluster does .RpcError: Timed out."),
        (OURS | {"ray": "9.9.8"}, REFUSED, "runs Ray 9.9.8 .* here are Ray 9.9.9 .* equal"),
        (OURS | {"python": "3.1.4"}, REFUSED, "under Python 3.1.4, here .* equal"),
    ],
)
def test_others_are_not(admit, with_token, without, said):
    with pytest.raises(ConfigError, match=said):
        admit(with_token, without)


def test_an_address_where_nobody_listens_is_said_at_once():
    with socket.socket() as taken:  # by nobody who listens, and by nobody else meanwhile
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"nobody answers at 127.0.0.1:{port} .Connection refused"
        ):
            admission.admit(f"127.0.0.1:{port}", {})


@pytest.mark.parametrize("address", ["somewhere", "auto", ":6379", "ray://head:10001x", "[::1]:"])
def test_an_address_is_a_host_and_a_port(address):
    with pytest.raises(ConfigError, match="give host:port"):
        admission.split_address(address)


def test_addresses_of_both_kinds_are_taken_apart():
    assert admission.split_address("head-3.cluster:6379") == ("head-3.cluster", 6379)
    assert admission.split_address("[fe80::1]:6379") == ("fe80::1", 6379)


def test_whoever_does_not_answer_is_ended(monkeypatch):
    monkeypatch.setattr(admission, "_ANSWER_SECONDS", 0.2)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    probe = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    assert admission._answer(probe) == {"error": "no answer in 0 s"}
    assert probe.returncode == -9


def test_a_question_that_breaks_is_an_error_not_a_trace():
    command = [sys.executable, "-c", "raise SystemExit(6)"]
    probe = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    assert admission._answer(probe) == {"error": "the question ended with code 6"}


def test_a_missing_ray_is_a_sentence(monkeypatch):
    def nothing(name):
        raise admission.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(admission.importlib.metadata, "version", nothing)
    with pytest.raises(ConfigError, match=r"pip install .hydragnn-hpo\[ray\]"):
        admission.ray_version()
