"""The page that travels inside an ensemble, for the person who receives it."""

from collections.abc import Sequence

from hydragnn_hpo.ensemble.manifest import HeadEntry, Manifest

_TEXT = """# {title}

An ensemble of {count} graph neural network{plural}, made by hydragnn-hpo {package} in campaign
`{campaign}` (seed {seed}; members chosen by {method}).

## What it predicts

{heads}

## How good it is

On the test split, whose structures took no part in training, search, selection or calibration
and were looked at once:

{scores}

`mean` always answers with the training mean; `best single` is the trial with the lowest
validation objective. Intervals are calibrated per head: sigma^2 = a s^2 + b from the spread s of
the members, then conformal quantiles for values of a new group of structures: structures that
were kept together when the data was split, and the atoms of one structure, are not independent.

## What it learned from

{data}

Elements (atomic numbers): {elements}. Predictions for other elements are marked and should not
be believed. Graphs hold all neighbours within {cutoff:g} angstrom.

## Members

{members}
"""


def model_card(manifest: Manifest) -> str:
    """Write the model card of an ensemble, in Markdown."""
    made, data = manifest.created_by, manifest.data
    count = len(manifest.members)
    facts = [("data set", data.name), ("origin", data.origin), ("licence", data.licence)]
    facts += [("cite", data.cite), ("checksum of the store", data.checksum)]
    members = [
        (m.trial, f"{m.weight:.3g}", f"{m.objective:.4g}", _numbers(m.val_mae, manifest))
        for m in manifest.members
    ]
    return _TEXT.format(
        title=data.title or data.name,
        count=count,
        plural="" if count == 1 else "s",
        package=manifest.package,
        campaign=made.campaign,
        seed=made.seed,
        method={"greedy": "greedy selection", "top": "the best by validation"}[made.method],
        heads="\n".join(_head(name, head) for name, head in manifest.heads.items()),
        scores=_scores(manifest),
        data="\n".join(f"- {name}: {value}" for name, value in facts if value),
        elements=", ".join(map(str, manifest.elements)),
        cutoff=manifest.cutoff,
        members=_table(("trial", "weight", "validation objective", "validation MAE"), members),
    )


def _head(name: str, head: HeadEntry) -> str:
    what = f"{head.shape} per {'atom' if head.level == 'node' else 'structure'}"
    energy = f", energy ({head.energy}), gives forces" if head.energy else ""
    text = f": {head.description}" if head.description else ""
    return f"- `{name}` in {head.unit} ({what}{energy}){text}"


def _scores(manifest: Manifest) -> str:
    names = ("test_mae", "test_rmse", "single_mae", "mean_baseline_mae", "coverage90")
    rows = [
        (f"`{head}` ({values['unit']})", *(f"{values[name]:.4g}" for name in names))
        for head, values in manifest.evaluation.items()
    ]
    titles = ("head", "MAE", "RMSE", "MAE of best single", "MAE of mean", "inside 90 %")
    return _table(titles, rows) if rows else "It was not evaluated: there is no test split."


def _numbers(values: dict[str, float], manifest: Manifest) -> str:
    units = manifest.units()
    return ", ".join(f"{k} {v:.4g} {units[k]}" for k, v in values.items() if k in units)


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
