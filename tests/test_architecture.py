"""The laws of the house that a parser can check: floors, faces, names, the torch line, the wheel.

Each law is one test over all modules, which tells every breach with its place.
"""

import ast
import functools
import graphlib
import importlib
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hydragnn_hpo"
SHIPPED = ("graph_datasets", "workflows", "launch")

GROUND = {
    *("errors", "units", "log", "metrics_log", "resources", "files", "layout", "walltime"),
    *(
        "config",
        "sanitize",
        "http_service",
        "host_info",
        "energy_counters",
        "leases",
        "rank_requests",
        "journal_events",
        "file_records",
        "lazy_exports",
        "optional_packages",
        "packed_environment",
        "data_frames",
        "words",
        "__init__",
    ),
}
CONTROL = {"search", "placement", "launching"}
COMPUTE = {"data", "model", "training"}
BELOW_REPORT = GROUND | CONTROL | COMPUTE | {"inspection", "campaign", "uncertainty"}
BELOW_REPORT |= {"host_checks", "planning", "ensemble", "ensemble_build"}
MAY_IMPORT = {
    **dict.fromkeys(GROUND, GROUND),
    "kernels": GROUND,
    "data": GROUND | {"kernels"},
    "inspection": GROUND | {"data"},
    "model": GROUND | {"kernels", "data"},
    "training": GROUND | {"data", "model"},
    "testing": GROUND | {"data", "model"},
    "search": GROUND,
    "placement": GROUND,
    "launching": GROUND,
    "campaign": GROUND | CONTROL,
    "host_checks": GROUND | CONTROL | {"campaign"},
    "planning": GROUND | CONTROL | {"campaign"},
    "uncertainty": GROUND | {"data"},
    "ensemble": GROUND | CONTROL | COMPUTE | {"campaign", "uncertainty"},
    "ensemble_build": (
        GROUND | CONTROL | COMPUTE | {"inspection", "campaign", "uncertainty", "ensemble"}
    ),
    "report": BELOW_REPORT,
    "pipeline": BELOW_REPORT | {"report"},
    "cli": BELOW_REPORT | {"report", "testing", "pipeline"},
    "python_api": BELOW_REPORT | {"report", "pipeline"},
    "__main__": {"cli"},
    "__init__": {"lazy_exports", "errors", "data", "model", "ensemble", "python_api"},
}
"""The table of floors; a room may always import itself."""

TORCH_FREE = ("config", "search", "placement", "launching", "campaign", "planning", "host_checks")
RUNS_ON_RANKS = {"launching.fork_server", "launching.rank"}
"""What executes inside the zygote or a rank may load torch, but only inside a function."""

MODULES = sorted(PACKAGE.rglob("*.py"))
PYTHON = [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give line and dotted name of every import, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            assert node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@functools.cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def obey(breaches: Callable[[Path], Iterator[str]], paths: Sequence[Path] = MODULES) -> None:
    """Check that no file breaks a law; else tell all that do."""
    assert len(paths) > 250, "this is not the whole house"
    results = [f"{name_of(path)}: {message}" for path in paths for message in breaches(path)]
    assert not results, "\n".join(results)


def test_a_room_imports_its_own_floor_or_a_lower_one() -> None:
    def breaches(module: Path) -> Iterator[str]:
        room = room_of(module)
        if room not in MAY_IMPORT:
            yield f"'{room}' stands on no floor: see the table in docs/design.md"
            return
        for line, name in imports(tree_of(module)):
            parts = name.split(".")
            if parts[0] != "hydragnn_hpo" or parts[1:] in ([], ["__version__"]):
                continue
            if parts[1] not in MAY_IMPORT[room] | {room}:
                yield f"line {line}: {room} imports {name}"

    obey(breaches)


FAMILIES = {
    *(
        "config.convs",
        "model.convs",
        "model.trunks",
        "data.readers",
        "search.brains",
        "testing.checks",
        "launching.transports",
    ),
    *("ensemble.writers", "report.sections"),
}
"""Folders of members of one kind, beside a plain dict; a room has no other folders in it."""


def is_face(module: Path) -> bool:
    return module.name == "__init__.py" and module.parent.parent == PACKAGE


def public_imports(module: Path) -> dict[str, str]:
    """Return the names that a face imports under ``TYPE_CHECKING``, or plainly, and from where."""
    result = {}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hydragnn_hpo."):
            result |= {alias.name: node.module or "" for alias in node.names}
    result.pop("lazy_exports", None)
    return result


DOCUMENTED = [
    *ROOT.glob("README.md"),
    *PACKAGE.rglob("README.md"),
    *(ROOT / "docs" / "api").glob("*.md"),
    *(ROOT / "docs" / "guide").glob("*.md"),
    *(ROOT / "docs" / "howto").glob("*.md"),
    *(ROOT / "docs" / "concepts").glob("*.md"),
    *(ROOT / "workflows").rglob("*.md"),
    *(ROOT / "workflows").rglob("*.py"),
]
"""Pages and scripts whose readers import from faces."""


def foreign_imports(module: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, room and name of what a module imports from other rooms and their modules."""
    for node in ast.walk(tree_of(module)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        package, *parts = node.module.split(".")
        if package != PACKAGE.name or not parts or parts[0] == room_of(module):
            continue
        if (PACKAGE / parts[0]).is_dir() and ".".join(parts[:2]) not in FAMILIES:
            yield from ((node.lineno, parts[0], alias.name) for alias in node.names)


def test_a_face_lists_what_two_rooms_use_or_a_page_names() -> None:
    """What one other room alone uses, it imports from its module."""
    users: dict[tuple[str, str], set[str]] = {}
    for module in MODULES:
        for _, room, name in foreign_imports(module):
            users.setdefault((room, name), set()).add(room_of(module))
    faces = {path.parent.name: set(public_imports(path)) for path in MODULES if is_face(path)}
    listed = {(room, name) for room, names in faces.items() for name in names}
    shared = {key for key, rooms in users.items() if len(rooms) > 1}
    words = set(re.findall(r"\w+", "\n".join(page.read_text() for page in DOCUMENTED)))
    assert not shared - listed, "put these into their face"
    assert not {key for key in listed - shared if key[1] not in words}, "take these off their face"


def test_what_a_face_lists_is_imported_from_it() -> None:
    def breaches(module: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(module)):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            package, *parts = node.module.split(".")
            if package == PACKAGE.name and len(parts) > 1 and parts[0] != room_of(module):
                face = public_imports(PACKAGE / parts[0] / "__init__.py")
                names = {alias.name for alias in node.names} & face.keys()
                yield from (f"line {node.lineno}: {name} is in the face" for name in names)

    obey(breaches)


def test_a_face_lists_what_it_hands_on() -> None:
    def breaches(face: Path) -> Iterator[str]:
        room = importlib.import_module(dotted(face))
        names = public_imports(face)
        if sorted(names) != sorted(room.__all__) or not names:
            yield f"__all__ and imports differ: {sorted(set(names) ^ set(room.__all__))}"
        if hidden := set(names) - set(dir(room)):
            yield f"a shell does not offer {sorted(hidden)}"
        modules = {path.stem for path in face.parent.iterdir()}
        for name in modules & set(names):
            yield f"{name} is a module, too: whichever is imported first wins"
        for name, home in names.items():
            if getattr(room, name) is not getattr(importlib.import_module(home), name):
                yield f"{name} is not that of {home}"

    faces = [path for path in MODULES if is_face(path)]
    assert len(faces) >= 12
    assert not [f"{name_of(face)}: {message}" for face in faces for message in breaches(face)]


CONVS_MAY_IMPORT = {
    *("messages", "edges", "layers", "triplets", "tensor_product"),
    *("convs.painn", "convs.pna"),
}
"""Modules of ``model`` that a conv may use, as a user's conv may: the passes are in ``messages``,
and convs of a family share blocks."""


def test_convs_take_their_passes_from_messages() -> None:
    def breaches(module: Path) -> Iterator[str]:
        if not dotted(module).startswith("hydragnn_hpo.model.convs."):
            return
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Import):
                homes = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                homes = [node.module or ""]
            else:
                continue
            for home in homes:
                part = home.removeprefix("hydragnn_hpo.model.")
                if home.startswith(("hydragnn_hpo.config", "torch")) or part in CONVS_MAY_IMPORT:
                    continue
                if home.split(".")[0] not in sys.stdlib_module_names:
                    yield f"line {node.lineno}: {home}"

    obey(breaches)


def test_the_face_of_kernels_is_small() -> None:
    face = importlib.import_module("hydragnn_hpo.kernels")
    functions = [name for name in face.__all__ if not isinstance(getattr(face, name), type)]
    assert len(functions) <= 12, functions


def test_a_room_has_one_level_of_folders() -> None:
    folders = {".".join(path.parent.relative_to(PACKAGE).parts) for path in MODULES}
    deep = {name for name in folders if "." in name}
    assert deep == FAMILIES


def test_modules_and_classes_are_named_once() -> None:
    modules = Counter[str]()
    classes = Counter[str]()
    for path in MODULES:
        if ".".join(path.parent.relative_to(PACKAGE).parts) in FAMILIES:
            continue
        if path.stem not in ("__init__", "__main__"):
            modules[path.stem] += 1
        nodes = ast.walk(tree_of(path))
        classes.update(n.name for n in nodes if isinstance(n, ast.ClassDef) and n.name[0] != "_")
    assert not [name for name, count in (modules + classes).items() if count > 1]


def is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and spelt(node.test) == "TYPE_CHECKING"


def imported_siblings(module: Path) -> set[str]:
    """Return the modules of its room that a module imports at run time, also inside functions."""
    siblings: set[str] = set()
    if is_face(module):
        return siblings
    body = [node for node in tree_of(module).body if not is_for_types(node)]
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
                if path.exists() and room_of(path) == room_of(module):
                    siblings.add(name)
    return siblings


def test_modules_of_a_room_have_an_order() -> None:
    graph = {dotted(path): imported_siblings(path) for path in MODULES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"these import each other: {' <- '.join(error.args[1])}")


def test_only_the_package_is_imported() -> None:
    def breaches(module: Path) -> Iterator[str]:
        for line, name in imports(tree_of(module)):
            if name.split(".")[0] in {*SHIPPED, "tests"}:
                yield f"line {line}: {name}"

    obey(breaches)


def test_the_controller_side_leaves_torch_out() -> None:
    rooms = [path for room in TORCH_FREE for path in sorted((PACKAGE / room).rglob("*.py"))]
    names = [dotted(path) for path in rooms]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'{name} imports torch'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


ON_EVERY_HOST = ("launching.agent", "launching.fork_server")
"""What thousands of hosts load at once, perhaps from one file system."""


def test_what_every_host_loads_is_little() -> None:
    for name in ON_EVERY_HOST:
        code = (
            "import importlib, sys\n"
            f"importlib.import_module('hydragnn_hpo.{name}')\n"
            "assert not {'pydantic', 'numpy', 'torch'} & set(sys.modules)\n"
        )
        run = [sys.executable, "-c", code]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"


def test_torch_is_not_imported_by_the_controller_side_even_late() -> None:
    def breaches(module: Path) -> Iterator[str]:
        short = dotted(module).removeprefix("hydragnn_hpo.")
        if room_of(module) in TORCH_FREE and short not in RUNS_ON_RANKS:
            for line, name in imports(tree_of(module)):
                if name.startswith("torch"):
                    yield f"line {line}: {name}"

    obey(breaches)


def test_functions_fit_a_screen() -> None:
    def breaches(module: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > 60:
                    yield f"{node.name}: {lines} lines"

    obey(breaches)


RUNS_CODE = (ast.Call, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp)


def squeezed(node: ast.AST) -> bool:
    """Return whether a statement assigns calls, or things of several kinds, as one tuple.

    Where a value needs what another name held before, as in ``a, b = b, a + b``, it may.
    """
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            parts = [part for value in values for part in ast.walk(value)]
            held = {ast.unparse(name) for name in names}
            if held & {ast.unparse(part) for part in parts if isinstance(part, ast.expr)}:
                return False
            kinds = {type(getattr(value, "operand", value)) for value in values}
            return len(kinds) > 1 or any(isinstance(part, RUNS_CODE) for part in parts)
    return False


def test_unrelated_things_are_not_assigned_as_a_tuple() -> None:
    assert squeezed(ast.parse("a, b = f(x), g(y)").body[0])
    assert not squeezed(ast.parse("a, b = b, f(a)").body[0])

    def breaches(module: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(module)):
            if squeezed(node):
                yield f"line {node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]

    obey(breaches, PYTHON)


VAGUE = {"Give", "Say", "Tell", "Let", "Hear"}
"""First words of docstrings that do not say what a call does."""

HOMELY = set(
    [
        "told",
        "said",
        "heard",
        "asked",
        "asking",
        "wish",
        "wishes",
        "desk",
        "door",
        "ferry",
        "errand",
        "crew",
        "sight",
        "signs",
        "looks",
        "guests",
        "visit",
        "keeper",
        "launched",
        "started",
        "together",
        "beside",
        "nobody",
        "stranger",
        "strangers",
        "greet",
        "found",
    ]
)
"""Words for which the field has others."""

UNTYPED = {f"{kind}[str, {of}]" for kind in ("dict", "Mapping") for of in ("Any", "object")}

FEW_UNTYPED = 150
"""Untyped mappings in all: what others define (TOML tables, searched values, plotly, ASE)."""


def functions_of(module: Path) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Yield the public functions and methods of a module, each with its docstring."""
    tree = tree_of(module)
    for place in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))):
        for node in place.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                yield node, ast.get_docstring(node) or ""


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return [each for each in every if each.arg not in ("self", "cls")]


def is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Check whether typer calls a function: the help of its parameters stands in their types."""
    notes = [ast.unparse(each.annotation or ast.Constant("")) for each in parameters_of(node)]
    return any(word in note for note in notes for word in ("Option", "Argument", "typer."))


def test_docstrings_say_what_a_call_does() -> None:
    def breaches(module: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                first = (ast.get_docstring(node) or "").split(" ", 1)[0].rstrip(".,:")
                if first in VAGUE:
                    yield f"{getattr(node, 'name', 'module')} begins with {first}"

    obey(breaches)


def test_names_are_words_of_the_field() -> None:
    def breaches(module: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                if node.id in HOMELY:
                    yield f"line {node.lineno}: {node.id}"
            elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in HOMELY:
                yield f"line {node.lineno}: {node.name}"
        if module.stem in HOMELY:
            yield "its own name"

    obey(breaches)


def test_three_parameters_have_args() -> None:
    def breaches(module: Path) -> Iterator[str]:
        for node, says in functions_of(module):
            if len(parameters_of(node)) >= 3 and "Args:" not in says and not is_command(node):
                yield node.name

    obey(breaches)


def test_tuples_and_dicts_have_returns() -> None:
    def breaches(module: Path) -> Iterator[str]:
        for node, says in functions_of(module):
            given = ast.unparse(node.returns) if node.returns else ""
            if given.startswith(("tuple[", "dict[")) and "Returns:" not in says:
                yield node.name

    obey(breaches)


def test_mappings_are_types() -> None:
    mentions = [
        f"{name_of(module)}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Subscript) and ast.unparse(node) in UNTYPED
    ]
    assert len(mentions) <= FEW_UNTYPED, "\n".join(mentions)


def test_sources_are_ascii() -> None:
    def breaches(path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.isascii():
                yield f"line {number}"

    obey(breaches, PYTHON)


FORBIDDEN = {"eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads"}


def spelt(node: ast.expr) -> str:
    """Return the dotted name of what is called, or an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := spelt(node.value)):
        return f"{left}.{node.attr}"
    return ""


def breach(call: ast.Call) -> str | None:
    """Say which law a call breaks, if any."""
    name = spelt(call.func)
    given = {word.arg: word.value for word in call.keywords if word.arg}
    if name in FORBIDDEN:
        return f"{name} runs what came from outside (Law 10)"
    if name == "torch.load" and not _is_true(given.get("weights_only")):
        return "torch.load without weights_only=True unpickles (Law 10)"
    if name.endswith(("numpy.load", "np.load")) and _is_true(given.get("allow_pickle")):
        return "numpy.load with allow_pickle unpickles (Law 10)"
    if "shell" in given and not _is_false(given["shell"]):
        return "a shell string is built from values (Law 10)"
    return None


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


TRUSTED = ("hydragnn_hpo/model/trunks/convert.py", "_unpickle_trusted")
"""The one function that unpickles: ``trunk convert --trusted``, which a user runs once by hand."""

LOADERS = {"pickle.load", "pickle.loads", "pickle.Unpickler", "os.system", "os.popen"}


def test_nobody_else_gets_in() -> None:
    def breaches(module: Path) -> Iterator[str]:
        trusted = {
            call
            for function in ast.walk(tree_of(module))
            if isinstance(function, ast.FunctionDef) and (name_of(module), function.name) == TRUSTED
            for call in ast.walk(function)
        }
        for node in ast.walk(tree_of(module)):
            if node in trusted:
                continue
            if isinstance(node, ast.Call) and (reason := breach(node)):
                yield f"line {node.lineno}: {reason}"
        for line, name in imports(tree_of(module)):
            if name in LOADERS:
                yield f"line {line}: {name}"

    obey(breaches)


def test_print_belongs_to_the_command_line() -> None:
    def breaches(module: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Call) and spelt(node.func) == "print":
                yield f"line {node.lineno}"

    shows = PACKAGE / "report/run_progress.py"  # the progress of a run that a script asked for
    quiet = [path for path in MODULES if (PACKAGE / "cli") not in path.parents]
    obey(breaches, [path for path in quiet if path != shows])


@pytest.fixture(scope="session")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build the wheel and list what is inside."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_only_the_package_reaches_site_packages(wheel_names: list[str]) -> None:
    top = {name.split("/")[0] for name in wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"hydragnn_hpo"}


@pytest.mark.parametrize("folder", SHIPPED)
def test_the_data_folders_ship_in_the_wheel(wheel_names: list[str], folder: str) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert tracked, f"{folder}/ holds nothing"
    missing = {f"hydragnn_hpo/_shipped/{name}" for name in tracked} - set(wheel_names)
    assert not missing
