"""Optuna without what it tells of itself."""

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def silence_optuna() -> Iterator[None]:
    """Keep Optuna from telling of every study, of what is experimental and of few trials."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
