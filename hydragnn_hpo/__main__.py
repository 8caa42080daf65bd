"""Let ``python -m hydragnn_hpo`` do what ``hydragnn-hpo`` does."""

from hydragnn_hpo.cli.main import main

if __name__ == "__main__":
    main()
