"""Load numba, its cached loops, and Triton when imported: fork servers do, so that ranks need not.

Nothing is compiled, nothing runs, and no device is asked anything. What is not installed is left
out, and so is Triton where torch is built for CPUs alone.
"""

import contextlib

import torch

with contextlib.suppress(ImportError):
    from hydragnn_hpo.kernels.numba_passes import KERNELS
    from hydragnn_hpo.kernels.pair_loops import LAYOUTS

    LAYOUTS.load_cached()
    KERNELS.load_cached()

if torch.version.cuda or torch.version.hip:
    with contextlib.suppress(ImportError):
        import hydragnn_hpo.kernels.triton_edge_functions  # noqa: F401
