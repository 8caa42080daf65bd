"""Where the token comes from, and that nothing else opens the door."""

from pathlib import Path

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.http_service import Token, find_token

LONG = "0123456789abcdef"


def test_a_file_comes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(LONG + "\n")
    file.chmod(0o600)
    assert find_token(file, {"HYDRAGNN_HPO_TOKEN": "x" * 20}) == Token(LONG, made=False)


def test_without_one_it_is_made_and_never_the_same() -> None:
    first = find_token(None, {})
    second = find_token(None, {})
    assert first.made
    assert first.text != second.text
    assert len(first.text) >= 43  # 32 bytes in base64


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(LONG)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read it"):
        find_token(file, {})


@pytest.mark.parametrize("text", ["", "short", "with a blank inside", "caf\u00e9" * 5])
def test_weak_tokens_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="at least 16 printable"):
        find_token(None, {"HYDRAGNN_HPO_TOKEN": text})


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        (f"Bearer {LONG}", True),
        (None, False),
        ("Bearer ", False),
        (f"Basic {LONG}", False),
        (f"Bearer {LONG}0", False),
        (f"Bearer {LONG[:-1]}", False),
        (LONG, False),
        ("Bearer \u00fc", False),
    ],
)
def test_only_the_token_fits(header: str | None, fits: bool) -> None:
    assert Token(LONG, made=False).fits(header) is fits
