"""Floating point type of a training: dtype of the weights, rounding of products, autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch

DTYPES = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "tf32": torch.float32,
    "bf16": torch.float32,
}
"""Floating point type of the weights by ``training.precision``."""


def message_dtype(precision: str) -> torch.dtype:
    """Return the type of messages: bf16 under autocast, else that of the weights."""
    return torch.bfloat16 if precision == "bf16" else DTYPES[precision]


def set_matmul_precision(precision: str) -> None:
    """Set whether GPUs round the factors of fp32 products to 10 bits, only done with ``tf32``.

    On a CPU ``tf32`` is fp32. cuDNN has a separate setting, but the models do not use cuDNN.
    """
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"


def compute_dtype(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of a forward pass; losses are computed outside it.

    With ``bf16``, linear maps multiply in bf16 and messages are bf16. Weights, their gradients and
    the optimizer's state stay fp32, and so do geometry, the scalars of the nodes, sums over graphs
    and the last map of a head (``model.layers``). Independence of ranks (Law 1) and of the batch
    (Law 7) then holds to bf16 rounding, 8 bits of each message, as the order of sums may differ.

    Source: Micikevicius et al. (2018), arXiv:1710.03740; Kalamkar et al. (2019), arXiv:1905.12322.
    """
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
