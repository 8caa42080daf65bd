"""Show a training in TensorBoard: ``training.tensorboard = true``."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import ConfigError

_LEFT_OUT = ("epoch", "slowest_rank")
"""Numbers of an epoch's record that are no curves."""


def check_tensorboard(where: Path) -> None:
    """Look whether the package is there.

    Raises:
        ConfigError: it is not.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            f"{where}: training.tensorboard needs a package that is not installed: "
            "pip install 'hydragnn-hpo[tensorboard]', or drop it."
        )


class TensorBoardWriter:
    """Writes the epochs' records once more, as TensorBoard reads them."""

    def __init__(self, folder: Path) -> None:
        """Begin a file in a folder, which is made."""
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        self._writer = make(str(folder))

    def show(self, record: str, time: float, values: Mapping[str, Any]) -> None:
        """Show a record, if it is an epoch's; other kinds are no curves.

        Args:
            record: its kind.
            time: seconds since 1970.
            values: what it says.
        """
        if record != "epoch":
            return
        for name, value in curves(values):
            self._writer.add_scalar(name, value, values["epoch"], walltime=time)
        self._writer.flush()

    def close(self) -> None:
        """Write down what is left."""
        self._writer.close()


def curves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Give every number in a record by its path: ``val_mae/energy``."""
    for key, value in values.items():
        name = f"{path}/{key}" if path else key
        if isinstance(value, Mapping):
            yield from curves(value, name)
        elif isinstance(value, (int, float)) and name not in _LEFT_OUT:
            yield name, float(value)
