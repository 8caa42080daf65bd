"""Tables as pandas DataFrames; pandas loads slowly, so it is imported when one is made."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from hydragnn_hpo.optional_packages import explain_missing

if TYPE_CHECKING:
    import numpy as np
    import pandas

    Column: TypeAlias = "Sequence[Any] | np.ndarray"

DATES = "datetime64[s, UTC]"
"""Type of a column of times, given in seconds since 1970."""


def make_frame(
    columns: Mapping[str, "Column"],
    units: Mapping[str, str] | None = None,
    types: Mapping[str, str] | None = None,
) -> "pandas.DataFrame":
    """Make a DataFrame.

    Args:
        columns: values by title; None is a missing value.
        units: unit by title, kept in ``frame.attrs["units"]``; titles without a unit may lack.
        types: pandas type by title, or ``DATES``; pandas chooses the others.

    Raises:
        MissingPackage: pandas is not installed.
    """
    with explain_missing():
        import pandas
    made = {}
    for title, values in columns.items():
        kind = (types or {}).get(title)
        if kind == DATES:
            seconds = pandas.Series(values, dtype="float64")
            made[title] = pandas.to_datetime(seconds, unit="s", utc=True)
        else:
            made[title] = pandas.Series(values, dtype=kind)
    frame = pandas.DataFrame(made)
    frame.attrs["units"] = {title: unit for title, unit in (units or {}).items() if unit}
    return frame
