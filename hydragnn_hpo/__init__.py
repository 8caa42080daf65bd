"""From structures with properties to a trusted predictor: GNN campaigns and ensembles.

    import hydragnn_hpo as hh

    campaign = hh.init("data.extxyz", minutes=10)
    run = campaign.run()
    table = run.ensemble.predict(structures).to_frame()

Stable is what ``__all__`` lists: names, arguments and what they return change only in a release
that says so in the changelog as **[Breaking]**, after one that warned where that is possible. The
commands, the keys of ``--json`` and the files of a run are stable in the same way. All modules and
rooms below this package may change in any release.

The names load on first use: the import alone loads neither torch nor pandas, plotly or typer.
"""

import os
from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.data import GraphStore
    from hydragnn_hpo.ensemble import Ensemble, EnsembleCalculator, Prediction
    from hydragnn_hpo.errors import HydraError
    from hydragnn_hpo.model import as_pyg
    from hydragnn_hpo.python_api import Campaign, Run, init, open_store

__version__ = "0.1.0"

if "HOME" not in os.environ:  # a null pointer for ADIOS2, which ends the process without a word
    os.environ["HOME"] = os.path.expanduser("~").replace("~", "/")  # ~: a user without a name

__all__ = [
    "Campaign",
    "Ensemble",
    "EnsembleCalculator",
    "GraphStore",
    "HydraError",
    "Prediction",
    "Run",
    "__version__",
    "as_pyg",
    "init",
    "open_store",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
