"""Energy counters of this host and its GPUs; the agent of a host reads them, and ranks in training.

Sources: Linux, Documentation/power/powercap/powercap.rst (RAPL) and Documentation/gpu/amdgpu; HPE
Cray EX, pm_counters(5); NVIDIA's NVML and AMD's amdsmi, which are optional.
"""

import contextlib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

Part = Literal["host", "cpu", "memory", "card"]
"""What a counter measures. ``host`` is everything in a host, including the other parts."""


@dataclass(frozen=True)
class Count:
    """Value of one energy counter, which only rises."""

    joules: float
    part: Part

    devices: tuple[str, ...] = ()
    """Devices of a card, by their names in ``Slot.visible``; empty for other parts."""

    wraps: float = 0.0
    """Joules at which the counter wraps to 0; 0 if it never wraps."""

    life: str = ""
    """Changes when the counter is reset."""


@dataclass
class Reading:
    """Values that a source shows at one moment; unknown values are left out."""

    counts: dict[str, Count] = field(default_factory=dict)
    """Energy counters by name, ``SOURCE/COUNTER``."""

    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    """Gauges by device: ``busy`` (share), ``celsius``, ``throttled`` (0 or 1)."""

    notes: tuple[str, ...] = ()
    """Sentences about counters that exist but may not be read."""


Source = Callable[[], Reading]
"""Reads one kind of counter now; raises nothing, takes milliseconds.

Created once per host from the folder that holds ``sys`` and ``proc``: devices found then keep
their numbers even if a file is missing later.
"""


def read_word(path: Path) -> str:
    """Return the text of a one-line file, stripped; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def read_number(path: Path, unit: float) -> float | None:
    """Return the whole number in a file times ``unit``; None if there is no such number."""
    word = read_word(path)
    return int(word) * unit if word.isascii() and word.isdigit() else None


CRAY = "sys/cray/pm_counters"
_CRAY_PARTS: dict[str, Part] = {"energy": "host", "cpu_energy": "cpu", "memory_energy": "memory"}


def cray(root: Path) -> Source:
    """Return a reader of a Cray host; each card's counter covers all AMD dies of the card.

    Files with another unit than the joule are ignored.
    """
    folder = root / CRAY
    matches = (re.fullmatch(r"accel(\d+)_energy", path.name) for path in folder.glob("accel*"))
    numbers = sorted(int(match[1]) for match in matches if match)
    each = max(1, len(cards_of(root, AMD)) // max(1, len(numbers)))
    cards = {
        f"accel{number}_energy": tuple(str(place * each + die) for die in range(each))
        for place, number in enumerate(numbers)
    }

    def read() -> Reading:
        life = read_word(folder / "startup")
        reading = Reading()
        for name in (*_CRAY_PARTS, *cards):
            if match := re.match(r"(\d+) J\b", read_word(folder / name)):
                part = _CRAY_PARTS.get(name, "card")
                devices = cards.get(name, ())
                reading.counts[f"cray/{name}"] = Count(float(match[1]), part, devices, life=life)
        return reading

    return read


POWERCAP = "sys/class/powercap"


def rapl(root: Path) -> Source:
    """Return a reader of CPU packages and memory; a package includes its cores."""
    zones: dict[Path, Part] = {}
    denied: tuple[str, ...] = ()
    for zone in sorted((root / POWERCAP).glob("intel-rapl:*")):
        name = read_word(zone / "name")
        if name == "dram" or name.startswith("package"):
            zones[zone] = "memory" if name == "dram" else "cpu"
            try:
                (zone / "energy_uj").read_bytes()
            except PermissionError:
                denied = (f"{zone / 'energy_uj'} may only be read by root",)
            except OSError:
                continue

    def read() -> Reading:
        reading = Reading(notes=denied)
        for zone, part in zones.items():
            energy = read_number(zone / "energy_uj", 1e-6)
            largest = read_number(zone / "max_energy_range_uj", 1e-6)
            if energy is not None and largest:
                reading.counts[f"rapl/{zone.name}"] = Count(energy, part, wraps=largest)
        return reading

    return read


DRM = "sys/class/drm"
AMD, INTEL = "0x1002", "0x8086"
_DRIVERS = ("amdgpu", "i915", "xe")


def cards_of(root: Path, vendor: str) -> list[Path]:
    """Return the device folders of a vendor's GPUs, by PCI address, else by number."""
    cards = [path for path in (root / DRM).glob("card*") if re.fullmatch(r"card\d+", path.name)]
    cards.sort(key=lambda path: int(path.name[4:]))
    devices = [card / "device" for card in cards if read_word(card / "device/vendor") == vendor]
    pci = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
    names = {device: device.resolve().name for device in devices}
    return sorted(devices, key=lambda device: names[device] if pci.fullmatch(names[device]) else "")


def _sensors_of(device: Path) -> Path:
    """Return the folder of a device's sensors; the device's own folder if there is none."""
    folders = sorted(device.glob("hwmon/hwmon*"))
    return next((path for path in folders if read_word(path / "name") in _DRIVERS), device)


def count_dies(source: str, joules: Iterable[float | None]) -> dict[str, Count]:
    """Return counters of AMD dies; the second die of an MI250X shows 0 and joins the first.

    Returns:
        Counters by name, ``SOURCE/DIE``.
    """
    counts: dict[str, Count] = {}
    last = ""
    for place, energy in enumerate(joules):
        device = str(place)
        if energy == 0.0 and last:
            counts[last] = replace(counts[last], devices=(*counts[last].devices, device))
        elif energy:
            last = f"{source}/{device}"
            counts[last] = Count(energy, "card", (device,))
    return counts


def drm(root: Path) -> Source:
    """Return a reader of the kernel's sensors of AMD GPUs, or of Intel GPUs if there are none."""
    devices = cards_of(root, AMD) or cards_of(root, INTEL)
    sensors_of = {device: _sensors_of(device) for device in devices}

    def read() -> Reading:
        energies = [read_number(path / "energy1_input", 1e-6) for path in sensors_of.values()]
        reading = Reading(count_dies("drm", energies))
        for place, (device, sensors) in enumerate(sensors_of.items()):
            gauges = {
                "busy": read_number(device / "gpu_busy_percent", 0.01),
                "celsius": read_number(sensors / "temp1_input", 1e-3),
            }
            if known := _known(gauges):
                reading.devices[str(place)] = known
        return reading

    return read


def _known(gauges: Mapping[str, float | None]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in gauges.items() if value is not None}


NVIDIA = "proc/driver/nvidia"

_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
"""NVML throttle reasons: hardware slowdown, software and hardware thermal limit, power brake."""

_CELSIUS = 0
"""NVML_TEMPERATURE_GPU."""


def _call(library: Any, name: str, *values: Any) -> Any:
    """Return one value of a library; None if the device, driver or library does not have it."""
    with contextlib.suppress(Exception):  # whatever the library raises, there is no value
        return getattr(library, name)(*values)
    return None


def _nvml_joules(library: Any, handle: Any) -> float | None:
    energy = _call(library, "nvmlDeviceGetTotalEnergyConsumption", handle)
    return None if energy is None else energy / 1e3


def _amdsmi_joules(library: Any, handle: Any) -> float | None:
    with contextlib.suppress(Exception):
        count = library.amdsmi_get_energy_count(handle)
        return float(count["energy_accumulator"]) * float(count["counter_resolution"]) / 1e6
    return None


def nvml(root: Path) -> Source:
    """Return a reader of NVIDIA's GPUs, numbered as ``nvidia-smi`` numbers them."""
    library: Any = None
    handles: dict[tuple[str, str], Any] = {}
    if (root / NVIDIA).exists():
        with contextlib.suppress(Exception):
            library = importlib.import_module("pynvml")
            library.nvmlInit()
            for number in range(library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(number)
                unique = library.nvmlDeviceGetUUID(handle)
                name = unique.decode() if isinstance(unique, bytes) else unique
                handles[str(number), name] = handle

    def read() -> Reading:
        reading = Reading()
        for names, handle in handles.items():
            if (energy := _nvml_joules(library, handle)) is not None:
                reading.counts[f"nvml/{names[0]}"] = Count(energy, "card", names)
            use = _call(library, "nvmlDeviceGetUtilizationRates", handle)
            slowed = _call(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
            gauges = {
                "busy": None if use is None else use.gpu / 100.0,
                "celsius": _call(library, "nvmlDeviceGetTemperature", handle, _CELSIUS),
                "throttled": None if slowed is None else float(bool(slowed & _SLOWED)),
            }
            reading.devices[names[0]] = _known(gauges)
        return reading

    return read


def amdsmi(root: Path) -> Source:
    """Return a reader of AMD GPUs in ROCm's order; it reads nothing if files have the energy."""
    library: Any = None
    handles: list[Any] = []
    cards = cards_of(root, AMD)
    in_files = any(path for card in cards for path in card.glob("hwmon/hwmon*/energy1_input"))
    if cards and not in_files and not (root / CRAY / "accel0_energy").exists():
        with contextlib.suppress(Exception):
            library = importlib.import_module("amdsmi")
            library.amdsmi_init()
            handles = list(library.amdsmi_get_processor_handles())

    joules = partial(_amdsmi_joules, library)
    return lambda: Reading(count_dies("amdsmi", map(joules, handles)))


def card_at(bus: str, *, rocm: bool) -> Source:
    """Return a reader of the GPU at a PCI address; it reads nothing if its library fails.

    Args:
        bus: such as ``0000:65:00.0``, which unlike a number depends on no environment variable.
        rocm: whether it is one of AMD's.
    """
    name = f"{'amdsmi' if rocm else 'nvml'}/{bus}"
    joules: Callable[[], float | None] | None = None
    with contextlib.suppress(Exception):
        library: Any = importlib.import_module("amdsmi" if rocm else "pynvml")
        if rocm:
            library.amdsmi_init()
            handle = library.amdsmi_get_processor_handle_from_bdf(bus)
            joules = partial(_amdsmi_joules, library, handle)
        else:
            library.nvmlInit()
            handle = library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode())
            joules = partial(_nvml_joules, library, handle)

    def read() -> Reading:
        energy = joules() if joules else None
        return Reading({} if energy is None else {name: Count(energy, "card", (bus,))})

    return read


SOURCES: tuple[Callable[[Path], Source], ...] = (cray, rapl, drm, nvml, amdsmi)
"""By precedence: for each part, only the first source that measures it is used."""


def all_sources(root: Path) -> Source:
    """Return a reader of all counters of a host."""
    sources = [source(root) for source in SOURCES]

    def read() -> Reading:
        whole = Reading()
        for reading in (source() for source in sources):
            whole.counts |= reading.counts
            whole.notes += reading.notes
            for device, gauges in reading.devices.items():
                whole.devices[device] = whole.devices.get(device, {}) | gauges
        return whole

    return read


MOST_WATTS = 1000.0
"""Above the power behind any counter that wraps. Between readings further apart than one wrap at
this power, the counter may have wrapped more than once."""


def joules_between(before: Count | None, now: Count | None, seconds: float) -> float | None:
    """Return the joules between two readings of a counter; None if they are uncertain.

    Args:
        before: first reading; None if the counter was missing.
        now: second reading; None if the counter was missing.
        seconds: time between the readings.
    """
    if before is None or now is None or before.life != now.life:
        return None
    if now.wraps and seconds * MOST_WATTS > now.wraps:
        return None
    risen = now.joules - before.joules
    if risen >= 0.0:
        return risen
    return risen + now.wraps if now.wraps else None


@dataclass(frozen=True)
class CounterSample:
    """Energy and gauges of a host over some seconds; plain data, sent between processes."""

    seconds: float

    parts: tuple[str, ...] = ()
    """Measured parts: ``host`` (everything), or some of ``cpu``, ``memory``, ``card``."""

    rest: float | None = None
    """Joules of the host without those in ``cards``; None if unknown."""

    cards: tuple[tuple[tuple[str, ...], float], ...] = ()
    """Devices and joules of each card."""

    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    """Gauges by device, see ``Reading``."""

    notes: tuple[str, ...] = ()

    @property
    def joules(self) -> float | None:
        """Sum of all measured joules; None if nothing was measured."""
        counted = [joules for _, joules in self.cards]
        counted += [] if self.rest is None else [self.rest]
        return sum(counted) if counted else None

    def rounded(self) -> "CounterSample":
        """Return the sample rounded to milliseconds and millijoules."""
        rest = None if self.rest is None else round(self.rest, 3)
        cards = tuple((devices, round(joules, 3)) for devices, joules in self.cards)
        return replace(self, seconds=round(self.seconds, 3), rest=rest, cards=cards)


def sample_between(
    before: Reading, now: Reading, seconds: float, *, known: Mapping[str, Count]
) -> CounterSample:
    """Return the sample between two readings.

    Args:
        before: first reading.
        now: second reading.
        seconds: time between the readings.
        known: all counters ever seen, by name: a part with a missing counter has no value.
    """
    empty = CounterSample(seconds, devices=now.devices)
    spent = {
        name: joules_between(before.counts.get(name), now.counts.get(name), seconds)
        for name in known
    }
    cards = [(known[name].devices, spent[name]) for name in _counters_of(known, "card")]
    sure = tuple((devices, joules) for devices, joules in cards if joules is not None)
    for name in _counters_of(known, "host")[:1]:
        whole = spent[name]
        if whole is None:  # its parts alone would look like a drop in energy
            return empty
        if len(sure) < len(cards):  # the rest then includes all cards
            sure = ()
        # The counters are independent: an idle host may show less than its cards.
        rest = max(0.0, whole - sum(joules for _, joules in sure))
        return replace(empty, parts=("host",), rest=rest, cards=sure)
    sums = {}
    counters = _counters_of(known, "cpu", "memory")
    for part in ("cpu", "memory"):
        joules = [spent[name] for name in counters if known[name].part == part]
        complete = [each for each in joules if each is not None]
        if complete and len(complete) == len(joules):
            sums[part] = sum(complete)
    parts = (*sums, "card") if sure else tuple(sums)
    return replace(empty, parts=parts, rest=sum(sums.values()) if sums else None, cards=sure)


def _counters_of(known: Mapping[str, Count], *parts: Part) -> list[str]:
    """Return the counters of some parts, from the first source that measures any of them."""
    names = [name for name in known if known[name].part in parts]
    return [name for name in names if name.partition("/")[0] == names[0].partition("/")[0]]


def merge_samples(first: CounterSample | None, second: CounterSample) -> CounterSample:
    """Merge two consecutive samples; drop the first if they do not measure the same parts."""
    if first is None:
        return second
    same = first.parts == second.parts and (first.rest is None) == (second.rest is None)
    if not same or [d for d, _ in first.cards] != [d for d, _ in second.cards]:
        return second
    return replace(
        second,
        seconds=first.seconds + second.seconds,
        rest=None if first.rest is None or second.rest is None else first.rest + second.rest,
        cards=tuple(
            (devices, joules + later)
            for (devices, joules), (_, later) in zip(first.cards, second.cards, strict=True)
        ),
        notes=(*first.notes, *second.notes),
    )


class CounterSampler:
    """Reads the counters of a host repeatedly."""

    def __init__(self, read: Callable[[], Reading], clock: Callable[[], float]) -> None:
        """Take the first reading; ``clock`` returns seconds."""
        self._read, self._clock = read, clock
        self._at = clock()
        self._last = read()
        self._known = dict(self._last.counts)
        self._noted: set[str] = set()

    @property
    def age(self) -> float:
        """Seconds since the last reading."""
        return self._clock() - self._at

    def sample(self) -> CounterSample:
        """Return the sample since the last reading, with notes that are new."""
        now = self._clock()
        reading = self._read()
        self._known |= reading.counts
        sample = sample_between(self._last, reading, now - self._at, known=self._known)
        notes = tuple(note for note in reading.notes if note not in self._noted)
        self._noted.update(notes)
        self._at, self._last = now, reading
        return replace(sample, notes=notes)
