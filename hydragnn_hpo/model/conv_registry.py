"""Find a conv by its name: one of ours, or a user's class, the one import by string."""

import importlib
from typing import Any

from pydantic import ValidationError
from torch import nn

from hydragnn_hpo.config import Config, ModelConfig, validation_sentence
from hydragnn_hpo.config.convs import CONV_SPECS, user
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.model.convs import CONVS


def find_conv(name: str) -> type[nn.Module]:
    """Give the class of a conv.

    Raises:
        ConfigError: there is none of this name, or it is no module of torch.
    """
    if not user.is_user_conv(name):
        if name not in CONVS:
            raise ConfigError(unknown("conv", name, CONVS))
        return CONVS[name]
    module_name, _, class_name = name.partition(":")
    try:
        user.check_name(name)
        user.check_installed(name)
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:  # whatever a user's module does while it is imported
        said = str(error).strip().rstrip(".") or type(error).__name__
        raise ConfigError(f"conv '{name}': its module cannot be imported ({said}).") from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(
            f"conv '{name}': '{module_name}' holds no torch module of this name: correct it."
        )
    return found


def options_of(config: ModelConfig) -> Config:
    """Give a conv's options; those of a user's conv are checked by its class's ``Options``.

    Raises:
        ConfigError: an option is unknown or wrong.
    """
    if not user.is_user_conv(config.conv):
        return config.conv_options
    schema: Any = getattr(find_conv(config.conv), "Options", user.UserOptions)
    try:
        options: Config = schema.model_validate(config.options)
    except ValidationError as error:
        raise ConfigError(
            f"options of conv '{config.conv}': {validation_sentence(error, schema)}"
        ) from error
    return options


def carries_vectors(name: str) -> bool:
    """Tell whether a conv's state holds vectors."""
    if user.is_user_conv(name):
        return bool(getattr(find_conv(name), "vectors", False))
    return CONV_SPECS[name].vectors


def reads_lengths(name: str) -> bool:
    """Tell whether a conv reads radial functions, or only the envelope."""
    return user.is_user_conv(name) or CONV_SPECS[name].edge_features


def gives_forces(name: str) -> bool:
    """Tell whether forces by differentiation mean something with a conv."""
    if user.is_user_conv(name):
        return bool(getattr(find_conv(name), "forces", True))
    return CONV_SPECS[name].forces
