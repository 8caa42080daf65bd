"""Load numba, its cached loops, and Triton when imported: fork servers do, so that ranks need not.

Nothing is compiled, nothing runs, and no device is asked anything. What is not installed is left
out, and so is Triton where torch is built for CPUs alone.
"""

import contextlib

import torch

with contextlib.suppress(ImportError):
    from hydragnn_hpo.data import load_cached_layout
    from hydragnn_hpo.model.kernels.numba_passes import KERNELS

    load_cached_layout()
    KERNELS.load_cached()

if torch.version.cuda or torch.version.hip:
    with contextlib.suppress(ImportError):
        import hydragnn_hpo.model.kernels.triton_edge_functions  # noqa: F401
