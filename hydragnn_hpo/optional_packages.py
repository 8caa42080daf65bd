"""Packages that extras bring: what needs each of them, and the sentence where one is missing.

Imports nothing slow: every command and every room may ask here.
"""

import contextlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import NamedTuple

from hydragnn_hpo.errors import ConfigError


class OptionalPackage(NamedTuple):
    """A package that only some uses need."""

    name: str
    """Its name in sentences."""
    extra: str
    """An extra of ``pyproject.toml`` that brings it; empty for a package of the core."""
    purpose: str
    """What needs it."""


OPTIONAL: Mapping[str, OptionalPackage] = {
    "adios2": OptionalPackage("ADIOS2", "", "a graph store"),
    "ase_db_backends": OptionalPackage("ase-db-backends", "lmdb", "an LMDB file"),
    "conda_pack": OptionalPackage("conda-pack", "pack", "an archive of a conda environment"),
    "deephyper": OptionalPackage("DeepHyper", "search", "search.brain 'deephyper'"),
    "h11": OptionalPackage("h11", "serve", "a service over HTTP"),
    "lmdb": OptionalPackage("lmdb", "lmdb", "an LMDB file"),
    "mace": OptionalPackage("mace-torch", "mace", "a MACE model"),
    "mlflow": OptionalPackage("MLflow", "mlflow", "an export to MLflow"),
    "mpi4py": OptionalPackage("mpi4py", "mpi", "work with MPI ranks"),
    "numba": OptionalPackage("numba", "fast", "model.kernels 'numba'"),
    "optuna": OptionalPackage("Optuna", "search", "search.brain 'optuna' or an importance"),
    "pandas": OptionalPackage("pandas", "report", "a table"),
    "plotly": OptionalPackage("Plotly", "report", "a report, dashboard or figure"),
    "pyarrow": OptionalPackage("pyarrow", "parquet", "a Parquet file"),
    "ray": OptionalPackage("Ray", "ray", "machine.backend 'ray'"),
    "rdkit": OptionalPackage("RDKit", "chem", "a file of SMILES"),
    "shap": OptionalPackage("SHAP", "report", "an importance of parameters"),
    "sklearn": OptionalPackage("scikit-learn", "report", "an importance of parameters"),
    "starlette": OptionalPackage("Starlette", "serve", "a dashboard or a service over HTTP"),
    "tblite": OptionalPackage("tblite", "xtb", "a calculation with GFN2-xTB"),
    "tensorboard": OptionalPackage("TensorBoard", "tensorboard", "a record for TensorBoard"),
    "triton": OptionalPackage("Triton", "dev", "model.kernels 'triton'"),
    "torch_geometric": OptionalPackage("PyTorch Geometric", "pyg", "data or a layer of PyG"),
    "uvicorn": OptionalPackage("uvicorn", "serve", "a dashboard or a service over HTTP"),
    "wandb": OptionalPackage("wandb", "wandb", "an export to Weights & Biases"),
}
"""All packages that may be missing, by the name under which they are imported."""


class MissingPackage(ConfigError):
    """A package of an extra is needed and not installed: the user installs it."""


def is_installed(module: str) -> bool:
    """Check whether a package is installed, without importing it."""
    return find_spec(module) is not None


def require_package(module: str, purpose: str = "", instead: str = "") -> None:
    """Check that a package is installed, without importing it.

    Args:
        module: a key of ``OPTIONAL``.
        purpose: what needs it, for the sentence; the usual purpose if left out.
        instead: what else the user can do, such as ``, or choose 'random'``.

    Raises:
        MissingPackage: it is not installed.
    """
    if not is_installed(module):
        raise MissingPackage(missing_sentence(module, purpose, instead))


@contextlib.contextmanager
def explain_missing(purpose: str = "", instead: str = "") -> Iterator[None]:
    """Turn the failed import of an optional package into the error that names its extra.

    Args:
        purpose: what needs it; the usual purpose if left out.
        instead: what else the user can do.

    Raises:
        MissingPackage: a package of ``OPTIONAL`` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (missing := explain_import_error(error, purpose, instead)) is None:
            raise
        raise missing from error


def explain_import_error(
    error: Exception, purpose: str = "", instead: str = ""
) -> MissingPackage | None:
    """Return the error for users that a failed import stands for; None for any other error.

    Args:
        error: any error.
        purpose: what needs the package; the usual purpose if left out.
        instead: what else the user can do.
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    if module not in OPTIONAL or is_installed(module):  # a part of it is missing: a bug
        return None
    return MissingPackage(missing_sentence(module, purpose, instead))


def missing_sentence(module: str, purpose: str = "", instead: str = "") -> str:
    """Return the sentence about an optional package that is not installed.

    >>> missing_sentence("rdkit")
    "a file of SMILES needs RDKit, which is not installed: pip install 'hydragnn-hpo[chem]'."

    Args:
        module: a key of ``OPTIONAL``.
        purpose: what needs it; the usual purpose if left out.
        instead: what else the user can do.
    """
    package = OPTIONAL[module]
    what = f"'hydragnn-hpo[{package.extra}]'" if package.extra else module
    needs = f"{purpose or package.purpose} needs {package.name}"
    return f"{needs}, which is not installed: pip install {what}{instead}."
