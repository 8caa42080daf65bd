"""The command ``hydragnn-hpo``, which is also ``python -m hydragnn_hpo``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it without a word."""
    try:
        from hydragnn_hpo.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
