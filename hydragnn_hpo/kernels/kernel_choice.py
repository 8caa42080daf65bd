"""The implementation of passes that runs: torch's operations, or loops of numba or Triton.

It depends on ``model.kernels``, on what is installed, on the device, the type of the numbers, and
on whether torch traces the model.
"""

import functools
import importlib
import logging
import os
import shutil

import torch

from hydragnn_hpo.errors import ConfigError

logger = logging.getLogger(__name__)

_COMPILED_TYPES = {
    "numba": (torch.float32, torch.float64),
    "triton": (torch.float32, torch.float64, torch.bfloat16, torch.float16),
}
"""Types of messages that the loops of an implementation know."""


@functools.cache
def _import_problem(kernels: str) -> str:
    """Return why numba or Triton cannot be used; an empty text if it can."""
    try:
        importlib.import_module(f"hydragnn_hpo.kernels.{kernels}_passes")
    except ImportError as error:
        return str(error).strip().partition("\n")[0].rstrip(".")
    if kernels == "triton" and not any(
        map(shutil.which, (os.environ.get("CC", ""), "gcc", "clang"))
    ):
        return "it needs a C compiler, and there is neither gcc nor clang"
    return ""


def check_kernels(setting: str) -> str:
    """Check that the implementation that ``model.kernels`` names is there, and return the setting.

    Raises:
        ConfigError: ``numba`` or ``triton`` is asked for and cannot be used.
    """
    if setting in _COMPILED_TYPES and (problem := _import_problem(setting)):
        package = "hydragnn-hpo[fast]" if setting == "numba" else "triton"
        raise ConfigError(
            f"model.kernels is '{setting}', which cannot be used ({problem}): install "
            f"'{package}', or set it to 'auto'."
        )
    return setting


@functools.cache
def _warn_of_eager(kernels: str, device: str, dtype: torch.dtype) -> None:
    logger.warning(
        "model.kernels = '%s' knows %s: in %s on %s torch's operations run.",
        kernels,
        "fp32 and fp64 on CPUs" if kernels == "numba" else "CUDA and ROCm devices",
        str(dtype).removeprefix("torch."),
        device,
    )


def knows_type(kernels: str, device: str, dtype: torch.dtype) -> bool:
    """Check whether an implementation by loops knows a type of device and of messages.

    Args:
        kernels: ``numba`` or ``triton``.
        device: type of the device.
        dtype: type of the messages.
    """
    if dtype not in _COMPILED_TYPES[kernels]:
        return False
    if kernels == "numba":
        return device == "cpu"
    return device == "cuda" or (device == "cpu" and _triton_interprets())


@functools.cache
def _triton_interprets() -> bool:
    from hydragnn_hpo.kernels.triton_loops import interprets

    return interprets()


def choose_kernels(setting: str, device: str, dtype: torch.dtype) -> str:
    """Return the implementation that passes over the edges use.

    Args:
        setting: ``model.kernels``.
        device: type of the device, such as ``cpu``; ROCm's is ``cuda``, too.
        dtype: type of the messages.

    Returns:
        ``numba`` or ``triton``; ``eager`` where it is not wanted, is not there, does not know
        device or type, or torch traces the model.
    """
    if setting == "eager" or torch.compiler.is_compiling():
        return "eager"
    kernels = {"cpu": "numba", "cuda": "triton"}.get(device) if setting == "auto" else setting
    if kernels is None or _import_problem(kernels):
        return "eager"
    if knows_type(kernels, device, dtype):
        return kernels
    if setting == kernels:
        _warn_of_eager(kernels, device, dtype)
    return "eager"
