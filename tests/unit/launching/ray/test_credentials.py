"""What is told to Ray before it is spoken with, and what is not."""

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.ray.credentials import make_token, ray_environment


@pytest.fixture
def token(tmp_path):
    return make_token(tmp_path / "mine" / "token")


def test_a_token_is_long_new_and_for_our_eyes_only(tmp_path, token):
    assert len(token.read_text()) == 64
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700
    assert make_token(tmp_path / "other").read_text() != token.read_text()


def test_a_token_that_is_there_stays(token):
    before = token.read_text()
    assert make_token(token).read_text() == before


def test_ray_is_told_to_demand_the_token_and_to_call_nobody(token):
    found = ray_environment({"HOME": "/h", "RAY_AUTH_MODE": "disabled"}, token)
    assert found == {
        "HOME": "/h",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def test_what_slurm_says_of_amd_devices_is_kept_from_ray(token):
    assert "ROCR_VISIBLE_DEVICES" not in ray_environment({"ROCR_VISIBLE_DEVICES": "0,1"}, token)


def test_the_token_is_looked_for_where_ray_looks(tmp_path, token):
    """Ray docs, "Token Sources and Precedence": the text, the named file, ``~/.ray/auth_token``."""
    home = tmp_path / "home"
    own = make_token(home / ".ray" / "auth_token")
    named = {"RAY_AUTH_TOKEN_PATH": str(token)}

    assert ray_environment({}, home=home)["RAY_AUTH_TOKEN_PATH"] == str(own)
    assert ray_environment(named, home=home)["RAY_AUTH_TOKEN_PATH"] == str(token)
    text = ray_environment(named | {"RAY_AUTH_TOKEN": "abc"}, home=home)
    assert text["RAY_AUTH_TOKEN"] == "abc"
    assert "RAY_AUTH_TOKEN" not in ray_environment({"RAY_AUTH_TOKEN": "abc"}, token, home)


@pytest.mark.parametrize("content", [None, "", " \n", b"\xff\xfe"])
def test_without_a_token_nothing_is_started(tmp_path, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(ConfigError, match=f"{path}: no token .* set RAY_AUTH_TOKEN_PATH"):
        ray_environment({"RAY_AUTH_TOKEN_PATH": str(path)})


def test_a_token_that_others_can_read_is_refused(token):
    token.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read this token: run 'chmod 600"):
        ray_environment({}, token)
