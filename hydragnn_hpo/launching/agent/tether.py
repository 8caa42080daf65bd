"""Become a program that dies with its parent: ``python -P -m ... tether PARENT PROGRAM ARG...``.

A promise about one's own death is made by the process itself. Making it between ``fork`` and
``exec`` would run Python in the fork of a process that has threads, which may hang.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from hydragnn_hpo.launching import process_control

_NOT_FOUND = 127
"""Exit code of a program that cannot be executed, as shells have it."""


def tethered(argv: Sequence[str]) -> list[str]:
    """Give the argv of a program that the kernel kills when the calling *thread* ends."""
    return [sys.executable, "-P", "-m", __name__, str(os.getpid()), *argv]


def main(parent: int, argv: list[str]) -> NoReturn:
    """Be the program from now on."""
    process_control.die_with_parent(parent)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"'{argv[0]}' cannot be run ({error.strerror}): mend command.argv.\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
