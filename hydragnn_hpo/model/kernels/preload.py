"""Load numba and its cached loops when imported: fork servers do, so that their ranks need not.

Nothing is compiled, and nothing runs. Without numba it does nothing.
"""

import contextlib

with contextlib.suppress(ImportError):
    from hydragnn_hpo.model.kernels.numba_passes import load_cached_loops

    load_cached_loops()
