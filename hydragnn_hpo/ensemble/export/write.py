"""Write one target of an ensemble as a program that needs torch alone, and a page beside it."""

import hashlib
import io
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from hydragnn_hpo.ensemble.engines.cache import of_torch
from hydragnn_hpo.ensemble.export.program import Program
from hydragnn_hpo.ensemble.export.sidecar import describe
from hydragnn_hpo.ensemble.export.trace import check, traced
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import write_bytes, write_json


def export(ensemble: Ensemble, target: str, out: Path, *, aot: bool = False) -> dict[str, Any]:
    """Write ``NAME.pt2`` and ``NAME.json``.

    Args:
        ensemble: on the CPU, in the precision that the program shall have.
        target: the head.
        out: ``NAME.pt2``.
        aot: compile it for this kind of computer (AOTInductor; needs a C++ compiler).

    Returns:
        What the page says.

    Raises:
        ConfigError: the name is wrong, the target unknown, or a member cannot be exported.
    """
    if out.suffix != ".pt2":
        raise ConfigError(f"{out}: a program is called NAME.pt2; give --out such a name.")
    check(ensemble, target)
    program = traced(ensemble, target)
    content = compiled(program) if aot else saved(program)
    shape = Program(ensemble.members, target, ensemble.manifest.heads[target])
    page = describe(ensemble.manifest, shape, compiled=aot)
    page |= {"program": out.name, "sha256": hashlib.sha256(content).hexdigest()}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, content)
    write_json(out.with_suffix(".json"), page)
    return page


def saved(program: ExportedProgram) -> bytes:
    """Give the file of a traced program."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def compiled(program: ExportedProgram) -> bytes:
    """Compile ahead of time and give the package.

    Raises:
        ConfigError: there is no working compiler.
    """
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.exc import InductorError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.pt2"
        try:
            with of_torch(Path(folder) / "inductor"), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
                aoti_compile_and_package(program, package_path=str(path))
        except (InductorError, RuntimeError, OSError) as error:
            said = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"the program cannot be compiled ({said}): install a C++ compiler, or export "
                "without --aot."
            ) from error
        return path.read_bytes()
