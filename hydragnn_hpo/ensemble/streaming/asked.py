"""From what a person asks for to the columns of an output."""

from collections.abc import Sequence
from pathlib import Path

from hydragnn_hpo.data.store_index import hash_file
from hydragnn_hpo.ensemble.inference.ensemble import Ensemble
from hydragnn_hpo.ensemble.output import Layout
from hydragnn_hpo.errors import ConfigError


def asked_for(
    model: Ensemble,
    archive: Path,
    *,
    levels: Sequence[str] = ("90",),
    members: bool = False,
    keep: Sequence[str] = (),
) -> Layout:
    """Say which columns an output has.

    Args:
        model: what predicts.
        archive: its file.
        levels: intervals in percent, as they were typed.
        members: each member has columns of its own.
        keep: keys of the input that are taken along.

    Raises:
        ConfigError: the ensemble has no interval of a level, or a key is the title of a column.
    """
    percents = _percents(model, levels)
    kept = tuple(dict.fromkeys(keep))
    layout = Layout(model.manifest, percents, members, kept, hash_file(archive))
    heads = model.manifest.heads
    titles = {"id", "trust", "error", "numbers", "num_nodes", "atom", "element"}
    titles |= {title for name in heads for title in layout.titles(name)}
    if taken := [key for key in layout.keep if key in titles]:
        raise ConfigError(
            f"--keep {taken[0]}: the output has a column of this name; rename the key in the input."
        )
    return layout


def _percents(model: Ensemble, levels: Sequence[str]) -> tuple[int, ...]:
    known = [str(level) for level in model.levels_known()]
    unknown = [level for level in levels if level not in known]
    if unknown or not levels:
        raise ConfigError(
            f"--levels {','.join(unknown)}: the ensemble has intervals of {', '.join(known)} "
            "percent; choose among these."
        )
    return tuple(sorted({int(level) for level in levels}))
