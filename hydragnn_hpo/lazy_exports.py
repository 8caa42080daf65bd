"""Public faces of rooms whose names are imported on first use.

A room's ``__init__.py`` lists its public names as imports under ``TYPE_CHECKING``. Type checkers
read them directly; at run time a name is imported at its first use. So
``from hydragnn_hpo.data import Batch`` loads one module instead of a whole room, the command line
starts at once, and a host agent loads neither pydantic nor torch. After its first use a name is an
attribute of the package, as after a plain import: tests replace it there, and a module that is
reloaded later has no effect on it.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from hydragnn_hpo.optional_packages import explain_missing


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions with which a package imports its public names on first use.

    Args:
        package: dotted name of the package, its ``__name__``.
        file: path of its ``__init__.py``, its ``__file__``.

    Returns:
        Its ``__getattr__``, which raises ``AttributeError`` for other names, and its ``__dir__``.
    """
    modules: dict[str, str] = {}

    def find_modules() -> dict[str, str]:
        """Read the package's file once.

        Returns:
            Dotted module by public name.
        """
        if not modules:
            modules.update(read_exports(file))
        return modules

    def load(name: str) -> Any:
        if name.startswith("__") or name not in find_modules():
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        with explain_missing():
            value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # so __getattr__ is not called for it again
        return value

    return load, lambda: sorted(find_modules())


def read_exports(file: str) -> dict[str, str]:
    """Return the module that defines each public name of a package.

    Args:
        file: path of the package's ``__init__.py``.

    Returns:
        Dotted module by name, from the imports under ``TYPE_CHECKING``.
    """
    import ast  # imported late: host agents never call this function

    with open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in guarded for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
