"""Work in calls: the same number on a slow machine, on a fast one, and on one that is busy."""

import sys
from collections.abc import Callable
from typing import Any


def calls(work: Callable[[], Any]) -> int:
    """Count the functions that some work calls, Python's own included; turns of generators too."""
    count = 0

    def noted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(noted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
