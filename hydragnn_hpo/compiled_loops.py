"""Loops over numpy arrays as machine code, by numba, cached for the user.

A loop is compiled at its first use, for one dtype, in about a second, and kept in a folder that
only its user can write to, since loading it runs it (Law 10). The folder's name has a hash of the
processor, numba's version and the sources of all loops of one kind. It holds one signature per
loop, so that processes that compile at the same time write the same: numba's index of a function
would mix up two signatures.
"""

import functools
import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import UserProvidedCacheLocator
from numba.core.codegen import get_host_cpu_features
from numba.core.options import TargetOptions
from numba.core.registry import cpu_target

from hydragnn_hpo.files import cache_folder, make_private

logger = logging.getLogger(__name__)

Loop = Callable[..., None]

_settings_change = threading.Lock()
"""Held while a thread compiles: it changes settings of the process, and batches are made in threads
of their own."""

_FASTMATH = {"contract", "reassoc", "nsz"}
"""Freedoms of the compiler: fused multiply-adds, and sums over features in vector registers. NaN
and infinity keep their meaning, since a diverged training is recognized by them."""


def _allow_wide_vectors() -> None:
    """Allow vectors of 512 bits on processors that do not slow down for them.

    LLVM prefers 256 bits on all of Intel's, because those before Ice Lake lower their clock. It is
    a setting of the process, from before numba compiles anything; the user's own stays.
    """
    settings: Any = numba.config
    features = get_host_cpu_features()  # type: ignore[no-untyped-call]
    if settings.CPU_FEATURES is None and "+avx512vbmi2" in features:
        settings.CPU_FEATURES = f"{features},-prefer-256-bit"


_allow_wide_vectors()


cpu_target.options.noalias = TargetOptions.Mapping("noalias")  # type: ignore[no-untyped-call]
"""An option that numba has for its own parallel loops alone: results share no memory with anything
else. Otherwise a loop over features checks all pairs of rows for it, at each edge."""


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
        number, freedoms = getattr(numba.types, dtype), name not in self.exact and _FASTMATH
        arguments = [_argument_type(word, number) for word in words.split()]
        folder = self.folder(dtype)
        if folder is not None and make_private(folder):
            try:
                return _compile(loop, arguments, freedoms, folder)
            except Exception as error:  # a full disk, or a file that a crash left torn: any class
                logger.info("kernel %s is not cached in %s: %s.", name, folder, error)
        return _compile(loop, arguments, freedoms, None)

    def folder(self, dtype: str) -> Path | None:
        """Return the folder of this processor's loops for one dtype; None without a home.

        Numba looks at the file of a loop alone, and loops call those of other files: their sources
        name the folder, too.
        """
        modules = {__name__, *self.parts, *(loop.__module__ for loop, _ in self.loops.values())}
        return _folder(tuple(str(sys.modules[each].__file__) for each in sorted(modules)), dtype)

    def load_cached(self) -> None:
        """Load numba's registries and the loops in the cache; forked ranks have them in memory.

        A loop that is not in the cache is left to the first rank that uses it.
        """
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
        for dtype in ("float32", "float64"):
            folder = self.folder(dtype)
            if folder is None:
                return
            for name, (loop, _) in self.loops.items():
                file = loop.__module__.rpartition(".")[2]
                if any(folder.glob(f"{file}.{loop.__name__}-*.nbi")):
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
            compiled: Loop = numba.njit(  # type: ignore[call-overload]
                numba.void(*arguments),
                cache=folder is not None,
                nogil=True,
                fastmath=freedoms,
                error_model="numpy",
                noalias=True,
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
def _folder(sources: tuple[str, ...], dtype: str) -> Path | None:
    """Return the folder of loops of some files; None for a user without a home."""
    checksum = hashlib.sha256()
    for file in sources:
        checksum.update(Path(file).read_bytes())
    parts = [*map(str, cpu_target.target_context.codegen().magic_tuple()), numba.__version__]
    name = hashlib.sha256(repr([*parts, checksum.hexdigest()]).encode()).hexdigest()[:16]
    try:
        return cache_folder("kernels") / f"{name}-{dtype}"
    except RuntimeError:
        return None
