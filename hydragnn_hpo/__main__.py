"""Entry point of the command ``hydragnn-hpo`` and of ``python -m hydragnn_hpo``."""

import faulthandler
import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C during its imports exits without a traceback.

    Threads of torch that wait for each other sleep instead of spinning, unless OMP_WAIT_POLICY says
    otherwise: on two cores with a load of 10, an ensemble was built in 90 s instead of 16 minutes.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded
    faulthandler.enable(file=2)  # a crash of a dependency has a traceback at least
    try:
        os.getcwd()
        from hydragnn_hpo.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    except FileNotFoundError:  # torch ends such a process in the loader of its own libraries
        sys.exit("the current folder was removed: change into one that exists.")
    command_line()


if __name__ == "__main__":
    main()
