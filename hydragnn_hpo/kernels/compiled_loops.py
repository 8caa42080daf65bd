"""Loops over numpy arrays as machine code, by numba, cached for the user.

A loop is compiled at its first use, for one dtype, in about a second, and kept in a folder that
only its user can write to, since loading it runs it (Law 10): in the home folder, or in scratch
where nothing can be written at home, as on the hosts of some clusters. The folder's name has a hash
of the processor, numba's version and the sources of all loops of one kind. It holds one signature
per loop, so that processes that compile at the same time write the same: numba's index of a
function would mix up two signatures.
"""

import contextlib
import functools
import hashlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import UserProvidedCacheLocator
from numba.core.codegen import JITCPUCodegen, get_host_cpu_features
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.extending import register_jitable

from hydragnn_hpo.files import cache_folder, is_own, make_private
from hydragnn_hpo.host_info import SCRATCH, create_private, private_folder

logger = logging.getLogger(__name__)

Loop = Callable[..., None]

_settings_change = threading.Lock()
"""Held while a thread compiles, for batches are made in threads of their own, and numba reads the
folder of its cache from settings of the process; afterwards they are as before."""

_FASTMATH = {"contract", "reassoc", "nsz"}
"""Freedoms of the compiler: fused multiply-adds, and sums over features in vector registers. NaN
and infinity keep their meaning, since a diverged training is recognized by them."""


@functools.cache
def _prefers_wide_vectors() -> bool:
    """Check whether loops may use vectors of 512 bits, which does not slow this processor down.

    LLVM prefers 256 bits on all of Intel's, because those before Ice Lake lower their clock. Where
    users choose the features of the processor themselves, theirs hold.
    """
    settings: Any = numba.config
    features = str(get_host_cpu_features())  # type: ignore[no-untyped-call]
    return settings.CPU_FEATURES is None and "+avx512vbmi2" in features


class _WideCodegen(JITCPUCodegen):
    """Numba's code generator, which lets LLVM use vectors of 512 bits."""

    def _get_host_cpu_features(self) -> str:
        return f"{super()._get_host_cpu_features()},-prefer-256-bit"  # type: ignore[no-untyped-call]

    def magic_tuple(self) -> Any:
        """Return the key of numba's own generator, by which loops are looked up in the cache."""
        return cpu_target.target_context.codegen().magic_tuple()


_make_codegen = functools.cache(_WideCodegen)
"""One for the process: it has an engine of its own."""


class _PartCompiler(Compiler):
    """Numba's compiler, for loops that may be wide while all else in the process stays as it is."""

    def __init__(self, typing: Any, target: Any, *more: Any) -> None:
        """Choose the code generator; ``more`` are the other arguments of numba's compiler."""
        if _prefers_wide_vectors():
            target = target.subtarget(_internal_codegen=_make_codegen("hydragnn_hpo.loops"))
        super().__init__(typing, target, *more)  # type: ignore[no-untyped-call]


class _LoopCompiler(_PartCompiler):
    """The same for a whole loop, whose results share no memory with anything else.

    Numba has this option for its own parallel loops alone. Otherwise a loop over features checks
    all pairs of rows for it, at each edge.
    """

    def __init__(self, *arguments: Any) -> None:
        """Set the option among the flags, which are those of this loop alone."""
        arguments[5].noalias = True
        super().__init__(*arguments)


def inline_part(function: Callable[..., Any]) -> Any:
    """Return a function that loops contain; compiled into each of them."""
    return register_jitable(forceinline=True, pipeline_class=_PartCompiler)(function)


class LoopLocator(UserProvidedCacheLocator):
    """Caches loops in one folder, wherever their sources lie and whenever they were written.

    Numba would keep a folder for each place, and compile again where the time of a file has
    changed. The name of the folder holds what sources contain, so that environments share it.
    """

    def __init__(self, py_func: Any, py_file: str) -> None:
        """Note the folder of now.

        Args:
            py_func: the loop.
            py_file: its source.
        """
        super().__init__(py_func, py_file)  # type: ignore[no-untyped-call]
        settings: Any = numba.config
        self._cache_path = str(settings.CACHE_DIR)

    def ensure_cache_path(self) -> None:
        """Accept the folder, which exists, also where loops can only be read."""

    def get_source_stamp(self) -> str:
        """Return what never changes."""
        return ""


class CompiledLoops:
    """Loops of one kind as machine code, each compiled or loaded when it is first asked for."""

    def __init__(
        self,
        loops: Mapping[str, tuple[Loop, str]],
        *,
        exact: Collection[str] = (),
        parts: Collection[str] = (),
    ) -> None:
        """Compile nothing yet.

        Args:
            loops: each loop and its arguments by name, a word for each: ``i`` for indices, [n]
                int64, or the number of dimensions of an array of the dtype; a tuple of arrays has
                a letter for each.
            exact: names of loops whose products are rounded one by one.
            parts: modules with functions that loops of other modules call.
        """
        self.loops, self.exact, self.parts = loops, exact, parts
        self._made: dict[tuple[str, str], Loop] = {}

    @property
    def count(self) -> int:
        """Number of loops that are in memory as machine code."""
        return len(self._made)

    def compile(self, name: str, dtype: str) -> Loop:
        """Return a loop as machine code for one dtype, from the user's cache where it is there.

        Args:
            name: of the loop.
            dtype: ``float32`` or ``float64``.
        """
        made = self._made.get((name, dtype))
        if made is None:
            made = self._made[name, dtype] = self._load(name, dtype)
        return made

    def _load(self, name: str, dtype: str) -> Loop:
        loop, words = self.loops[name]
        number = getattr(numba.types, dtype)
        freedoms = name not in self.exact and _FASTMATH
        arguments = [_argument_type(word, number) for word in words.split()]
        for folder in self._usable_folders(name, dtype):
            try:
                return _compile(loop, arguments, freedoms, folder)
            except Exception as error:  # a full disk, or a file that a crash left torn: any class
                logger.info("kernel %s is not cached in %s: %s.", name, folder, error)
        warn_uncached()
        return _compile(loop, arguments, freedoms, None)

    def _usable_folders(self, name: str, dtype: str) -> Iterator[Path]:
        """Yield the folders that hold a loop already, or that it can be written to."""
        for folder in self.folders(dtype, make=True):
            if self._holds(folder, name) or (make_private(folder) and os.access(folder, os.W_OK)):
                yield folder

    def _holds(self, folder: Path, name: str) -> bool:
        """Check whether a folder that only this user can write to holds a loop."""
        loop, _ = self.loops[name]
        file = loop.__module__.rpartition(".")[2]
        return is_own(folder) and any(folder.glob(f"{file}.{loop.__name__}-*.nbi"))

    def folders(self, dtype: str, *, make: bool = False) -> Iterator[Path]:
        """Yield the folders for this processor's loops for one dtype, the best first.

        Numba looks at the file of a loop alone, and loops call those of other files: their sources
        name the folder, too.
        """
        modules = {__name__, *self.parts, *(loop.__module__ for loop, _ in self.loops.values())}
        name = _folder_name(tuple(str(sys.modules[each].__file__) for each in sorted(modules)))
        return (place / f"{name}-{dtype}" for place in _cache_places(make=make))

    def load_cached(self) -> None:
        """Load numba's registries and the loops in the cache; forked ranks have them in memory.

        A loop that is not in the cache is left to the first rank that uses it.
        """
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
        for dtype in ("float32", "float64"):
            for name in self.loops:
                if any(self._holds(folder, name) for folder in self.folders(dtype)):
                    self.compile(name, dtype)


def _compile(loop: Loop, arguments: list[Any], freedoms: Any, folder: Path | None) -> Loop:
    """Compile a loop, or load it from a folder.

    Args:
        loop: in Python.
        arguments: numba's types of its arguments.
        freedoms: of the compiler with numbers; False for none.
        folder: of the cache; None for no cache.
    """
    settings: Any = numba.config
    with _settings_change:
        before = settings.CACHE_DIR, getattr(settings, "CACHE_LOCATOR_CLASSES", "")
        settings.CACHE_DIR = str(folder or "")
        settings.CACHE_LOCATOR_CLASSES = f"{__name__}.{LoopLocator.__name__}"
        try:  # numba notes the folder of a function when it is decorated
            compiled: Loop = numba.njit(
                numba.void(*arguments),
                cache=folder is not None,
                nogil=True,
                fastmath=freedoms,
                error_model="numpy",
                pipeline_class=_LoopCompiler,
            )(loop)
        finally:
            settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = before
    return compiled


def _argument_type(word: str, number: Any) -> Any:
    """Return numba's type of an argument, see ``CompiledLoops``."""
    types: Any = numba.types
    whole = word[0] == "i"
    array = types.Array(types.int64 if whole else number, 1 if whole else int(word[0]), "C")
    return array if len(word) == 1 else types.UniTuple(array, len(word))


@functools.cache
def _folder_name(sources: tuple[str, ...]) -> str:
    """Return what names the folders of loops of some files, on this processor."""
    checksum = hashlib.sha256()
    for file in sources:
        checksum.update(Path(file).read_bytes())
    parts = [*map(str, cpu_target.target_context.codegen().magic_tuple()), numba.__version__]
    return hashlib.sha256(repr([*parts, checksum.hexdigest()]).encode()).hexdigest()[:16]


def _cache_places(*, make: bool) -> Iterator[Path]:
    """Yield the folders of caches that this user may have, the best first.

    Args:
        make: whether to make private folders in scratch, where others may write.
    """
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield cache_folder("kernels")
    for scratch in (*os.environ.get(SCRATCH, "").split(":"), tempfile.gettempdir()):
        folder = private_folder(Path(scratch))
        with contextlib.suppress(OSError):
            if scratch and (make or folder.exists()) and create_private(folder):
                yield folder / "kernels"


@functools.cache
def warn_uncached() -> None:
    """Warn once that loops cannot be cached; forked ranks have heard of it."""
    logger.warning(
        "compiled loops cannot be kept in %s: each start compiles them again, for seconds; set "
        "HOME, XDG_CACHE_HOME or %s to a folder that can be written.",
        " or ".join(map(str, _cache_places(make=True))) or "any folder",
        SCRATCH,
    )
