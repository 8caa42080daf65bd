"""The model card inside an ensemble file, written for the person who receives it."""

from collections.abc import Mapping, Sequence

from ase.data import chemical_symbols

from hydragnn_hpo.config import TrialConfig
from hydragnn_hpo.ensemble.manifest import HeadEntry, Manifest

_TEXT = """# {title}

An ensemble of {count} graph neural network{plural}, made by hydragnn-hpo {package} in campaign
`{campaign}` (seed {seed}; members chosen by {method}).{pruned}

Licence of the ensemble: {licence}. Licence of the data: {data_licence}.

## What it is for

It predicts, from the atoms of a structure alone:

{heads}

It is meant for structures like those it learned from (below): screening them, ranking them,
deciding which to compute or measure next. Every prediction has a standard deviation and an
interval; structures that look foreign are marked in the column `trust` and should be checked
by other means. It is not meant for deciding alone where an error does harm.

## How good it is

{scores}

## What it cannot do

{limits}

## How its intervals were made

{intervals}

## What it learned from

{data}

## Members

{members}
{diversity}
## How to open it

    pip install "hydragnn-hpo>={package}"
    hydragnn-hpo ensemble info ensemble.zip
    hydragnn-hpo predict new.cif --ensemble ensemble.zip

Opening it runs no code and needs no network.{trust} Without hydragnn-hpo: this is a zip;
`ensemble.json` says everything about heads, units, members and calibration, `members/*.toml` is
each net's configuration, `members/*.safetensors` its weights by name, `SHA256SUMS` the checksum
of each file (`sha256sum -c SHA256SUMS` after unpacking). Made with {software}.
"""

_UNTESTED = (
    "It was not evaluated: there is no test split, or members were taken out after the test split "
    "was looked at. Evaluate it on labelled structures of your own: "
    "`hydragnn-hpo ensemble evaluate`."
)
_TESTED = """On the test split, whose structures took no part in training, search, selection or
calibration and were looked at once:

{table}

`mean` always answers with the training mean; `best single` is the trial with the lowest
validation objective."""

_INTERVALS = """Per head, on {cal}structures kept for nothing else (the split `cal`): sigma^2 =
a s^2 + c v + b, where s is the spread of the members' predictions and v the variance they predict
for themselves, fitted by likelihood; then conformal quantiles, so that mean -+ quantile x sigma
covers its share of the values of a *new* group. Structures that were kept together when the data
was split, and the atoms of one structure, are one group.

{table}"""


def render_model_card(manifest: Manifest, configs: Mapping[str, TrialConfig]) -> str:
    """Write the model card of an ensemble, in Markdown.

    Args:
        manifest: all that is known.
        configs: of the members, by trial.
    """
    made, data, count = manifest.created_by, manifest.data, len(manifest.members)
    packages = ", ".join(f"`{p}` {v}" for p, v in manifest.packages.items())
    return _TEXT.format(
        title=_line(data.title or data.name),
        count=count,
        plural="" if count == 1 else "s",
        package=manifest.package,
        campaign=made.campaign,
        seed=made.seed,
        method={"greedy": "greedy selection", "top": "the best by validation"}.get(
            made.method, made.method
        ),
        pruned=_pruned(manifest),
        licence=_line(manifest.licence) or "not stated",
        data_licence=_line(data.licence) or "not stated",
        heads="\n".join(_head(name, head) for name, head in manifest.heads.items()),
        scores=_scores(manifest),
        limits="\n".join(f"- {limit}" for limit in _limits(manifest)),
        intervals=_intervals(manifest),
        data=_data(manifest),
        members=_members(manifest, configs),
        diversity=_diversity(manifest),
        trust=f" Its members need code of {packages}: `--trust` says that you trust it."
        * bool(packages),
        software=_software(manifest),
    )


def _pruned(manifest: Manifest) -> str:
    steps = [f"{', '.join(step.removed)} were taken out" for step in manifest.pruned]
    return f" Members {'; then '.join(steps)}, and it was calibrated anew." if steps else ""


def _head(name: str, head: HeadEntry) -> str:
    what = f"{head.shape} per {'atom' if head.level == 'node' else 'structure'}"
    energy = f", energy ({head.energy}), gives forces" if head.energy else ""
    text = f": {_line(head.description)}" if head.description else ""
    return f"- `{name}` in {head.unit} ({what}{energy}){text}"


def _scores(manifest: Manifest) -> str:
    names = ("test_mae", "test_rmse", "single_mae", "mean_baseline_mae", "coverage90")
    rows = [
        (f"`{head}` ({values.get('unit', '')})", *(_number(values.get(name)) for name in names))
        for head, values in manifest.evaluation.items()
    ]
    titles = ("head", "MAE", "RMSE", "MAE of best single", "MAE of mean", "inside 90 %")
    return _TESTED.format(table=_table(titles, rows)) if rows else _UNTESTED


def _limits(manifest: Manifest) -> list[str]:
    elements = ", ".join(chemical_symbols[z] for z in manifest.elements)
    limits = [
        f"Elements: {elements}. Predictions for structures with others are marked, and should "
        "not be believed.",
        f"Atoms further apart than {manifest.cutoff:g} angstrom are seen only through others.",
    ]
    atoms = manifest.data.atoms
    if atoms:
        limits.append(f"It learned from structures of {atoms[0]} to {atoms[1]} atoms.")
    for name, head in manifest.heads.items():
        if head.lowest is not None and head.highest is not None:
            limits.append(
                f"`{name}`: trained on {head.lowest:.4g} to {head.highest:.4g} {head.unit} "
                f"(mean {head.mean:.4g}, standard deviation {head.std:.4g}); values beyond are "
                "guesses."
            )
    limits.append(
        "Intervals hold on the average over structures like those it learned from, not for every "
        "kind of structure by itself, and not for foreign ones."
    )
    return limits


def _intervals(manifest: Manifest) -> str:
    rows = []
    for name, head in manifest.heads.items():
        fit, quantile = head.calibration, head.calibration.quantiles
        numbers = [_number(value) for value in (fit.a, fit.c, fit.b)]
        shares = [_number(quantile.get(level)) for level in ("0.5", "0.8", "0.9", "0.95")]
        rows.append((f"`{name}`", *numbers, *shares, str(fit.groups), str(fit.rows)))
    titles = ("head", "a", "c", "b", "50 %", "80 %", "90 %", "95 %", "groups", "values")
    cal = manifest.data.splits.get("cal")
    return _INTERVALS.format(cal=f"{cal} " if cal else "", table=_table(titles, rows))


def _data(manifest: Manifest) -> str:
    data = manifest.data
    facts = [("data set", data.name), ("origin", data.origin), ("licence", data.licence)]
    facts += [("cite", data.cite), ("checksum of the store", data.checksum)]
    facts += [("splits", ", ".join(f"{k} {v}" for k, v in data.splits.items()))]
    facts += [(f"file `{name}`", f"sha256 {sums}") for name, sums in data.files.items() if sums]
    facts += [("cards", ", ".join(f"`data/{name}.toml`" for name in data.cards))]
    return "\n".join(f"- {name}: {_line(value)}" for name, value in facts if value)


def _members(manifest: Manifest, configs: Mapping[str, TrialConfig]) -> str:
    rows = []
    for member in manifest.members:
        model = configs[member.trial].model
        shares = sorted({f"{share:.3g}" for share in member.weights.values()}, key=float)
        errors = _errors(member.val_mae, manifest)
        net = f"{model.conv}, {model.layers} x {model.features}, {model.cutoff:g} angstrom"
        weight = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"
        rows.append((member.trial, net, weight, f"{member.objective:.4g}", errors))
    return _table(("trial", "net", "weight", "validation objective", "validation MAE"), rows)


def _diversity(manifest: Manifest) -> str:
    """Return the table of how alike the members err; empty if unknown."""
    if not manifest.diversity:
        return ""
    rows = [
        (f"`{n}`", _number(seen.correlation), _number(seen.member_rmse), _number(seen.rmse))
        for n, seen in manifest.diversity.items()
    ]
    titles = ("head", "correlation of their errors", "RMSE of a member", "RMSE of the mix")
    return f"\nOn the structures that they were chosen on:\n\n{_table(titles, rows)}\n"


def _errors(values: Mapping[str, float], manifest: Manifest) -> str:
    units = manifest.units()
    return ", ".join(f"{k} {v:.4g} {units[k]}" for k, v in values.items() if k in units)


def _software(manifest: Manifest) -> str:
    versions = [f"{name} {version}" for name, version in manifest.software.items()]
    versions += [f"commit {manifest.commit}"] if manifest.commit else []
    return ", ".join(versions) or "versions that were not written down"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-"


def _line(text: str) -> str:
    """Return text as one line, so that untrusted text cannot become a heading or a table."""
    return " ".join(text.split())


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
