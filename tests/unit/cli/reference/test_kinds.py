"""Types in words: what a user may write."""

from typing import Annotated, Any, Literal

import pytest
from annotated_types import Len
from pydantic import Field, NonNegativeInt, PositiveFloat

from hydragnn_hpo.cli.reference.kinds import kind


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "integer"),
        (int | None, "integer"),
        (PositiveFloat | None, "number > 0"),
        (Annotated[float, Field(ge=0.0, lt=1.0)], "number >= 0 and < 1"),
        (Literal["a", "b"], '`"a"` `"b"`'),
        (int | float, "number"),
        (bool | str, "`true` or `false` or text"),
        (tuple[NonNegativeInt, ...], "list of integer >= 0"),
        (tuple[float, float, float], "list of 3 x number"),
        (Annotated[tuple[str, ...], Len(2)], "list of text, at least 2"),
        (dict[str, float], "table of number"),
        (dict[str, Any], "table"),
    ],
    ids=str,
)
def test_types_are_said_in_words(annotation: Any, words: str) -> None:
    assert kind(annotation) == words
