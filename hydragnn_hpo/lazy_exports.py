"""Public faces of rooms whose names are imported on first use.

A room's ``__init__.py`` lists its public names as imports under ``TYPE_CHECKING``. Type checkers
read them as they stand; at run time each happens when the name is asked for. So
``from hydragnn_hpo.data import Batch`` loads one module rather than a whole room, the command
line answers at once, and a host agent loads neither pydantic nor torch. A name is kept in the face
once it was asked for, as after a plain import: a test that replaces what other rooms use replaces
it there, and a module that is replaced or reloaded later is not looked at again.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return what a package needs to import its public names on first use.

    Args:
        package: dotted name of the package, its ``__name__``.
        file: path of its ``__init__.py``, its ``__file__``.

    Returns:
        Its ``__getattr__``, which raises ``AttributeError`` for other names, and its ``__dir__``.
    """
    homes: dict[str, str] = {}

    def read_homes() -> dict[str, str]:
        if not homes:
            homes.update(read_exports(file))
        return homes

    def load(name: str) -> Any:
        if name.startswith("__") or name not in read_homes():
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next time it is found without a call
        return value

    return load, lambda: sorted(read_homes())


def read_exports(file: str) -> dict[str, str]:
    """Return the module that defines each public name of a package.

    Args:
        file: path of the package's ``__init__.py``.

    Returns:
        Dotted module by name, from the imports under ``TYPE_CHECKING``.
    """
    import ast  # only where a name is asked for: agents of thousands of hosts never do

    with open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in guarded for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
