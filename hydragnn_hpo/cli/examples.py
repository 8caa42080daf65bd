"""Examples at the end of each command's help; a test parses every one of them."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": (
        "hydragnn-hpo init my.extxyz",
        "hydragnn-hpo init my.csv --target gap --unit gap=eV --minutes 60",
    ),
    "run": (
        "hydragnn-hpo run my_search.toml",
        "hydragnn-hpo run quickstart --minutes 10 --run runs/first",
        "hydragnn-hpo run my_search.toml --trials 30 --set search.brain=random --dry-run",
    ),
    "plan": (
        "hydragnn-hpo plan my_search.toml --figure plan.png",
        "hydragnn-hpo plan my_search.toml --machine frontier --hosts 512 --structures 1e6",
    ),
    "submit": (
        "hydragnn-hpo submit my_search.toml --machine frontier --hosts 64 --time 2:00 "
        "--account mat123 --dry-run",
        "hydragnn-hpo submit my_search.toml --machine frontier --hosts 64 --time 2:00 "
        "--account mat123 --set search.trials=400",
    ),
    "doctor": ("hydragnn-hpo doctor", "hydragnn-hpo doctor --machine frontier --hosts 4 --quick"),
    "pack": ("hydragnn-hpo pack --out environment.tar.gz",),
    "status": ("hydragnn-hpo status runs/first --watch", "hydragnn-hpo status runs/first --json"),
    "dashboard": ("hydragnn-hpo dashboard runs/first --port 8080",),
    "leaderboard": ("hydragnn-hpo leaderboard runs/first --top 5",),
    "report": ("hydragnn-hpo report runs/first --out first.html",),
    "importance": ("hydragnn-hpo importance runs/first --target mae",),
    "compare": ("hydragnn-hpo compare runs/first runs/second --reach energy=0.02",),
    "export": (
        "hydragnn-hpo export runs/first --to csv --out tables",
        "hydragnn-hpo export runs/first --to best --out best_config.toml",
    ),
    "stop": ("hydragnn-hpo stop runs/first",),
    "pause": ("hydragnn-hpo pause runs/first",),
    "retry": ("hydragnn-hpo retry runs/first t0007",),
    "cancel": ("hydragnn-hpo cancel runs/first t0007",),
    "add-trials": (
        "hydragnn-hpo add-trials runs/first 20",
        "hydragnn-hpo add-trials runs/first --values mine.toml",
    ),
    "predict": (
        "hydragnn-hpo predict new.cif --ensemble runs/first/ensemble.zip",
        "hydragnn-hpo predict many.extxyz --ensemble runs/first --out predicted.csv",
    ),
    "serve": ("hydragnn-hpo serve runs/first/ensemble.zip --port 8765",),
    "ensemble build": ("hydragnn-hpo ensemble build runs/first --dry-run",),
    "ensemble evaluate": (
        "hydragnn-hpo ensemble evaluate labelled.extxyz --ensemble runs/first --card my.toml",
    ),
    "ensemble info": ("hydragnn-hpo ensemble info runs/first/ensemble.zip",),
    "ensemble prune": (
        "hydragnn-hpo ensemble prune runs/first/ensemble.zip --keep 3 --out small.zip",
    ),
    "ensemble pick": (
        "hydragnn-hpo ensemble pick pool.extxyz --ensemble runs/first --n 50 --out next.extxyz",
        "hydragnn-hpo ensemble pick pool.extxyz --trunk chgnet --n 50 --out first.extxyz",
    ),
    "ensemble export": (
        "hydragnn-hpo ensemble export runs/first/ensemble.zip --target torch --out model.pt2",
    ),
    "dataset build": ("hydragnn-hpo dataset build my.toml --out my.bp",),
    "dataset info": ("hydragnn-hpo dataset info my.bp",),
    "dataset check": ("hydragnn-hpo dataset check my.bp",),
    "dataset unstage": ("hydragnn-hpo dataset unstage",),
    "dataset embed": (
        "hydragnn-hpo dataset embed my.bp --trunk chgnet",
        "hydragnn-hpo dataset embed my.bp --trunk trunks/my_mace.json",
    ),
    "trunk convert": (
        "hydragnn-hpo trunk convert finetuned.pth.tar --name mine --licence MIT",
        "hydragnn-hpo trunk convert my_mace.model --trusted --licence MIT --out trunks",
    ),
    "machine list": ("hydragnn-hpo machine list",),
    "machine show": ("hydragnn-hpo machine show frontier",),
    "trial": ("hydragnn-hpo trial best_config.toml",),
    "check-layer": ("hydragnn-hpo check-layer my_layers.conv:MyConv",),
    "reference": ("hydragnn-hpo reference learning_rate",),
    "info": ("hydragnn-hpo info", "hydragnn-hpo info --json"),
}
"""One to three examples by the words of a command; those that only scripts call have none."""


def show_examples(name: str) -> str:
    """Return the end of a command's help, for typer's ``epilog``.

    Args:
        name: words of the command, such as ``dataset build``.
    """
    return "\n\n".join(("Examples:", *EXAMPLES[name]))
