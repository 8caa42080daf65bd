"""Which label of a file belongs to which head, and in which unit: asked, never guessed.

Shapes: G graphs.
"""

from collections.abc import Iterable, Mapping

from hydragnn_hpo.config.data import CardConfig, TargetConfig
from hydragnn_hpo.ensemble.manifest import HeadEntry, Manifest
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.units import inside


def labels_of_card(manifest: Manifest, card: CardConfig) -> dict[str, TargetConfig]:
    """Give the card's targets that the ensemble predicts, by head.

    Raises:
        ConfigError: there is none, or one is another quantity than the head.
    """
    both = {name: card.targets[name] for name in manifest.heads if name in card.targets}
    if not both:
        raise ConfigError(
            f"card '{card.name}' has the targets {', '.join(card.targets)}, the ensemble predicts "
            f"{', '.join(manifest.heads)}: name the targets alike, or say --target HEAD=KEY."
        )
    return _checked(manifest, both, f"card '{card.name}'")


def labels_of_options(manifest: Manifest, options: Iterable[str]) -> dict[str, TargetConfig]:
    """Give the labels that options like ``gap=band_gap:meV`` name, by head.

    Args:
        manifest: the heads.
        options: ``HEAD=KEY`` or ``HEAD=KEY:UNIT``; without a unit the label is in the head's.

    Raises:
        ConfigError: one is no such text, names no head, or has a unit of another quantity.
    """
    found: dict[str, TargetConfig] = {}
    for option in options:
        head, _, rest = option.partition("=")
        key, _, unit = rest.partition(":")
        if not key:
            raise ConfigError(f"--target '{option}': write HEAD=KEY or HEAD=KEY:UNIT.")
        if head not in manifest.heads:
            raise ConfigError(f"--target '{option}': {unknown('head', head, manifest.heads)}")
        if head in found:
            raise ConfigError(f"--target '{option}': head '{head}' has a label already; give one.")
        entry = manifest.heads[head]
        inside(unit or entry.unit)
        found[head] = TargetConfig(
            key=key,
            level=entry.level,
            shape=entry.shape,
            unit=unit or entry.unit,
            energy=entry.energy,
            derived_from=entry.derived_from,
        )
    return _checked(manifest, found, "--target")


def _checked(
    manifest: Manifest, labels: Mapping[str, TargetConfig], where: str
) -> dict[str, TargetConfig]:
    """Refuse other quantities; structures may lack a label, then they do not count for it."""
    for name, label in labels.items():
        _check(name, label, manifest.heads[name], where)
    return {name: label.model_copy(update={"optional": True}) for name, label in labels.items()}


def _check(name: str, label: TargetConfig, head: HeadEntry, where: str) -> None:
    unit = inside(label.unit)[1] + ("/atom" if label.per_atom else "")
    said = {"level": label.level, "shape": label.shape, "unit": unit}
    wanted = {"level": head.level, "shape": head.shape, "unit": head.unit}
    said["energy"], wanted["energy"] = label.energy or "none", head.energy or "none"
    for what, value in said.items():
        if value != wanted[what]:
            converted = what == "unit" and value != label.unit
            shown = f"{label.unit}, which is {value}" if converted else value
            raise ConfigError(
                f"{where}: {what} of '{name}' is {shown}; the ensemble predicts {wanted[what]}: "
                "correct it, or give other labels."
            )
