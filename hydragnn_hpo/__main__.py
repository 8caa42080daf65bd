"""Entry point of the command ``hydragnn-hpo`` and of ``python -m hydragnn_hpo``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C during its imports exits without a traceback."""
    try:
        from hydragnn_hpo.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
