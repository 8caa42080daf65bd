"""The made-up runs that the tests of ``ensemble`` have."""

from unit.ensemble.conftest import (  # noqa: F401
    _scratch,
    built_run,
    built_zip,
    factored_zip,
    finished,
    frozen_run,
    make_run,
    predict_alone,
    scratch,
    summed_run,
    total_zip,
)
