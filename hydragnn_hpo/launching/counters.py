"""Energy and load of this host: joules between two readings of its counters, each counted once."""

import contextlib
import importlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from hydragnn_hpo.host_info import read_memory

Part = Literal["host", "cpu", "memory", "card"]
"""What a counter counts. ``host`` is everything in a host, the other parts included."""


@dataclass(frozen=True)
class Count:
    """How far a counter of energy has come; it only rises."""

    joules: float
    part: Part

    devices: tuple[str, ...] = ()
    """Of a card: its devices, by the numbers that the host has for them (``Slot.visible``)."""

    wraps: float = 0.0
    """Where it begins at 0 again, in joules; 0 if it never does."""

    life: str = ""
    """Another one says that it has begun anew."""


@dataclass
class Reading:
    """What a source says at one moment; what it cannot tell is left out."""

    counts: dict[str, Count] = field(default_factory=dict)
    """Counters of energy by name."""

    host: dict[str, float] = field(default_factory=dict)
    """Gauges of the host."""

    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    """Gauges by device: ``busy`` (share), ``memory_mb``, ``celsius``, ``watts``, ``throttled``."""

    notes: list[str] = field(default_factory=list)
    """Sentences on what is there but may not be read."""


class Source(Protocol):
    """Numbers from one kind of counter; built once for each host, and asked again and again."""

    def __init__(self, root: Path) -> None:
        """Look what there is in the folder that holds ``sys`` and ``proc``."""

    def read(self) -> Reading:
        """Return what can be read now; raises nothing, takes milliseconds."""


def read_word(path: Path) -> str | None:
    """Return what a file of one line holds; None where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> float | None:
    """Return the number that a file holds; None where it holds none, or a negative one."""
    try:
        found = int(read_word(path) or "")
    except ValueError:
        return None
    return float(found) if found >= 0 else None


CRAY = "sys/cray/pm_counters"

_PARTS: dict[str, Part] = {"energy": "host", "cpu_energy": "cpu", "memory_energy": "memory"}


def read_joules(path: Path) -> float | None:
    """Return the joules of one file; None unless it says that they are joules."""
    said = re.match(r"(\d+) J\b", read_word(path) or "")
    return float(said[1]) if said else None


class Cray:
    """Energy of a Cray host."""

    def __init__(self, root: Path) -> None:
        """See ``Source``."""
        self._folder = root / CRAY
        found = (re.fullmatch(r"accel(\d+)_energy", path.name) for path in self._listed())
        numbers = sorted(int(match[1]) for match in found if match)
        amd = len(cards_of(root, "0x1002"))
        each = max(1, amd // len(numbers)) if numbers else 1
        self._modules = {
            number: tuple(str(place * each + die) for die in range(each))
            for place, number in enumerate(numbers)
        }

    def _listed(self) -> list[Path]:
        try:
            return list(self._folder.iterdir())
        except OSError:
            return []

    def read(self) -> Reading:
        """See ``Source``."""
        life, reading = read_word(self._folder / "startup") or "", Reading()
        for name, part in _PARTS.items():
            if (found := read_joules(self._folder / name)) is not None:
                reading.counts[f"cray/{name}"] = Count(found, part, life=life)
        for number, devices in self._modules.items():
            name = f"accel{number}_energy"
            if (found := read_joules(self._folder / name)) is not None:
                reading.counts[f"cray/{name}"] = Count(found, "card", devices, life=life)
        return reading


POWERCAP = "sys/class/powercap"


def _part(name: str | None) -> Part | None:
    if name == "dram":
        return "memory"
    return "cpu" if name is not None and name.startswith("package") else None


class Rapl:
    """Energy of packages and memories."""

    def __init__(self, root: Path) -> None:
        """See ``Source``."""
        zones = sorted((root / POWERCAP).glob("intel-rapl:*"))
        self._zones = {zone: part for zone in zones if (part := _part(read_word(zone / "name")))}
        self._denied: list[str] = []
        for zone in self._zones:
            try:
                (zone / "energy_uj").read_bytes()
            except PermissionError:
                self._denied = [f"{zone / 'energy_uj'} may only be read by root"]
            except OSError:
                continue

    def read(self) -> Reading:
        """See ``Source``; that root alone may read is said once."""
        reading = Reading(notes=self._denied)
        self._denied = []
        for zone, part in self._zones.items():
            energy, largest = (
                read_number(zone / "energy_uj"),
                read_number(zone / "max_energy_range_uj"),
            )
            if energy is not None and largest:
                count = Count(energy / 1e6, part, wraps=largest / 1e6)
                reading.counts[f"rapl/{zone.name}"] = count
        return reading


DRM = "sys/class/drm"
AMD, INTEL = "0x1002", "0x8086"
_DRIVERS = ("amdgpu", "i915", "xe")


def cards_of(root: Path, *vendors: str) -> list[Path]:
    """Return the device folders of some vendors' GPUs, by PCI address."""
    cards = [path for path in (root / DRM).glob("card*") if re.fullmatch(r"card\d+", path.name)]
    cards.sort(key=lambda path: int(path.name[4:]))
    found = [card / "device" for card in cards if read_word(card / "device/vendor") in vendors]
    return sorted(found, key=_address)


def _address(device: Path) -> str:
    """Return the PCI address of a device; empty, which keeps their order, where it is no link."""
    name = device.resolve().name
    return name if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", name) else ""


def _sensors(device: Path) -> Path | None:
    folders = sorted((device / "hwmon").glob("hwmon*"))
    return next((folder for folder in folders if read_word(folder / "name") in _DRIVERS), None)


def count_dies(source: str, joules: Iterable[float | None]) -> dict[str, Count]:
    """Return the counts of AMD's dies, in their order.

    The second die of an MI250X counts nothing: the first counts for both.
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


class Drm:
    """GPUs of one kind: AMD's, or Intel's where there are none of AMD's."""

    def __init__(self, root: Path) -> None:
        """See ``Source``."""
        devices = cards_of(root, AMD) or cards_of(root, INTEL)
        self._devices = [(device, _sensors(device)) for device in devices]

    def read(self) -> Reading:
        """See ``Source``."""
        reading, joules = Reading(), list[float | None]()
        for place, (device, sensors) in enumerate(self._devices):
            if gauges := _gauges(device, sensors):
                reading.devices[str(place)] = gauges
            energy = read_number(sensors / "energy1_input") if sensors else None
            joules.append(None if energy is None else energy / 1e6)
        reading.counts = count_dies("drm", joules)
        return reading


def _gauges(device: Path, sensors: Path | None) -> dict[str, float]:
    found = {
        "busy": _scaled(device / "gpu_busy_percent", 0.01),
        "memory_mb": _scaled(device / "mem_info_vram_used", 1.0 / (1 << 20)),
    }
    if sensors is not None:
        average = _scaled(sensors / "power1_average", 1e-6)
        found["watts"] = average if average else _scaled(sensors / "power1_input", 1e-6)
        found["celsius"] = _scaled(sensors / "temp1_input", 1e-3)
    return {name: value for name, value in found.items() if value is not None}


def _scaled(path: Path, unit: float) -> float | None:
    found = read_number(path)
    return None if found is None else found * unit


NVIDIA = "proc/driver/nvidia"

_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, heat seen by software, heat seen by hardware, power brake."""

_CELSIUS = 0
"""NVML_TEMPERATURE_GPU."""


class Nvml:
    """NVIDIA's GPUs, numbered as ``nvidia-smi`` numbers them."""

    def __init__(
        self,
        root: Path,
        load: Callable[[str], Any] = importlib.import_module,
    ) -> None:
        """See ``Source``; ``load`` imports the library."""
        self._nvml: Any = None
        self._devices: dict[tuple[str, ...], Any] = {}
        if not (root / NVIDIA).exists():
            return
        with contextlib.suppress(Exception):  # whatever it says instead, it has no numbers for us
            self._nvml = load("pynvml")
            self._nvml.nvmlInit()
            for number in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
                unique = self._nvml.nvmlDeviceGetUUID(handle)
                name = unique.decode() if isinstance(unique, bytes) else unique
                self._devices[str(number), name] = handle

    def read(self) -> Reading:
        """See ``Source``."""
        reading = Reading()
        for names, handle in self._devices.items():
            energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", handle)
            if energy is not None:
                reading.counts[f"nvml/{names[0]}"] = Count(energy / 1e3, "card", names)
            reading.devices[names[0]] = self._gauges(handle)
        return reading

    def _gauges(self, handle: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        if (use := self._ask("nvmlDeviceGetUtilizationRates", handle)) is not None:
            found["busy"] = use.gpu / 100.0
        if (memory := self._ask("nvmlDeviceGetMemoryInfo", handle)) is not None:
            found["memory_mb"] = memory.used / (1 << 20)
        if (watts := self._ask("nvmlDeviceGetPowerUsage", handle)) is not None:
            found["watts"] = watts / 1e3
        if (celsius := self._ask("nvmlDeviceGetTemperature", handle, _CELSIUS)) is not None:
            found["celsius"] = float(celsius)
        slowed = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if slowed is not None:
            found["throttled"] = float(bool(slowed & _SLOWED))
        return found

    def _ask(self, name: str, *values: Any) -> Any:
        """Ask one thing; None where this GPU, driver or library does not know it."""
        with contextlib.suppress(Exception):
            return getattr(self._nvml, name)(*values)
        return None


class AmdSmi:
    """Energy of AMD's GPUs, numbered as ROCm numbers them."""

    def __init__(
        self,
        root: Path,
        load: Callable[[str], Any] = importlib.import_module,
    ) -> None:
        """See ``Source``; ``load`` imports the library, if a file does not say as much."""
        self._smi: Any = None
        self._handles: list[Any] = []
        cards = cards_of(root, AMD)
        told = any(path for card in cards for path in card.glob("hwmon/hwmon*/energy1_input"))
        if not cards or told or (root / CRAY / "accel0_energy").exists():
            return
        with contextlib.suppress(Exception):  # whatever it says instead, it has no numbers for us
            self._smi = load("amdsmi")
            self._smi.amdsmi_init()
            self._handles = list(self._smi.amdsmi_get_processor_handles())

    def read(self) -> Reading:
        """See ``Source``."""
        return Reading(count_dies("amdsmi", map(self._energy, self._handles)))

    def _energy(self, handle: Any) -> float | None:
        with contextlib.suppress(Exception):
            told = self._smi.amdsmi_get_energy_count(handle)
            return float(told["energy_accumulator"]) * float(told["counter_resolution"]) / 1e6
        return None


_IDLE, _WAITING, _COUNTED = 3, 4, 8
"""Places in the line ``cpu`` of /proc/stat; guests, behind these, are counted as users too."""


class HostLoad:
    """Gauges of the host."""

    def __init__(
        self,
        root: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See ``Source``; ``clock`` gives seconds."""
        self._proc, self._clock = root / "proc", clock
        self._ticks: tuple[int, int] | None = None
        self._sent: tuple[float, int] | None = None
        self.read()

    def read(self) -> Reading:
        """See ``Source``; shares and rates are those since the last call."""
        found = {
            "busy": self._busy(),
            "load": _load(self._proc),
            "memory_mb": _memory_mb(self._proc),
            "network_mb_per_second": self._network(),
        }
        return Reading(host={name: value for name, value in found.items() if value is not None})

    def _busy(self) -> float | None:
        """Return the share of the processors' time that was not idle."""
        last, self._ticks = self._ticks, _ticks(self._proc)
        if last is None or self._ticks is None or self._ticks[1] <= last[1]:
            return None
        share = (self._ticks[0] - last[0]) / (self._ticks[1] - last[1])
        return min(1.0, max(0.0, share))

    def _network(self) -> float | None:
        """Return the megabytes per second that went out and came in, loopback left out."""
        now, moved = self._clock(), _moved(self._proc)
        last, self._sent = self._sent, None if moved is None else (now, moved)
        if last is None or moved is None or now <= last[0] or moved < last[1]:
            return None
        return (moved - last[1]) / (now - last[0]) / 1e6


def _ticks(proc: Path) -> tuple[int, int] | None:
    """Return the ticks of all processors that were busy, and all of them."""
    with contextlib.suppress(ValueError, IndexError):
        first = (read_word(proc / "stat") or "").partition("\n")[0].split()
        ticks = [int(part) for part in first[1 : 1 + _COUNTED]]
        return sum(ticks) - ticks[_IDLE] - ticks[_WAITING], sum(ticks)
    return None


def _load(proc: Path) -> float | None:
    with contextlib.suppress(ValueError, IndexError):
        return float((read_word(proc / "loadavg") or "").split()[0])
    return None


def _memory_mb(proc: Path) -> float | None:
    memory = read_memory(proc / "meminfo")
    if not {"MemTotal", "MemAvailable"} <= memory.keys():
        return None
    return (memory["MemTotal"] - memory["MemAvailable"]) / (1 << 20)


def _moved(proc: Path) -> int | None:
    """Return the bytes that all interfaces but loopback have received and sent."""
    lines = re.findall(r"^\s*([^\s:]+):\s*(.+)$", read_word(proc / "net/dev") or "", re.M)
    with contextlib.suppress(ValueError, IndexError):
        numbers = [told.split() for name, told in lines if name != "lo"]
        return sum(int(each[0]) + int(each[8]) for each in numbers) if numbers else None
    return None


SOURCES: dict[str, type[Source]] = {
    "cray": Cray,
    "rapl": Rapl,
    "drm": Drm,
    "nvml": Nvml,
    "amdsmi": AmdSmi,
    "system": HostLoad,
}


class HostCounters:
    """All sources of one host."""

    def __init__(self, root: Path) -> None:
        """Look what there is, see ``Source``."""
        self._sources = [source(root) for source in SOURCES.values()]

    def read(self) -> Reading:
        """Return what all of them say."""
        whole = Reading()
        for reading in (source.read() for source in self._sources):
            whole.counts |= reading.counts
            whole.host |= reading.host
            whole.notes += reading.notes
            for device, gauges in reading.devices.items():
                whole.devices[device] = whole.devices.get(device, {}) | gauges
        return whole


MOST_WATTS = 1000.0
"""More than one counter that wraps ever sees: a longer pause than it needs to come round at this
power may have had more than one round."""


@dataclass(frozen=True)
class CounterSample:
    """What happened on a host in some seconds; plain data, as it goes over the line."""

    seconds: float

    parts: tuple[str, ...] = ()
    """What was counted: ``host`` (everything), or some of ``cpu``, ``memory``, ``card``."""

    rest: float | None = None
    """Joules of the host beside those of its cards."""

    cards: tuple[tuple[tuple[str, ...], float], ...] = ()
    """Devices of each card, and its joules."""

    gauges: dict[str, float] = field(default_factory=dict)
    """Of the host, see ``Reading``."""

    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def joules(self) -> float | None:
        """All that was counted; None if nothing was."""
        found = [joules for _, joules in self.cards]
        found += [] if self.rest is None else [self.rest]
        return sum(found) if found else None

    def to_plain(self) -> dict[str, Any]:
        """Return plain data, with the digits that mean something."""
        plain = asdict(self)
        plain["seconds"] = round(self.seconds, 3)
        plain["rest"] = None if self.rest is None else round(self.rest, 3)
        plain["cards"] = [[devices, round(joules, 3)] for devices, joules in self.cards]
        plain["gauges"] = _rounded(self.gauges)
        plain["devices"] = {name: _rounded(gauges) for name, gauges in self.devices.items()}
        return plain

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "CounterSample":
        """Take plain data back."""
        cards = tuple((tuple(devices), float(joules)) for devices, joules in plain["cards"])
        return cls(
            seconds=float(plain["seconds"]),
            parts=tuple(plain["parts"]),
            rest=None if plain["rest"] is None else float(plain["rest"]),
            cards=cards,
            gauges=dict(plain["gauges"]),
            devices=dict(plain["devices"]),
            notes=tuple(plain["notes"]),
        )


def _rounded(gauges: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in gauges.items()}


def joules_between(before: Count | None, now: Count | None, seconds: float) -> float | None:
    """Return the joules between two looks at a counter; None where they are not sure."""
    if before is None or now is None or before.life != now.life:
        return None
    if now.wraps and seconds * MOST_WATTS > now.wraps:
        return None
    risen = now.joules - before.joules
    if risen >= 0.0:
        return risen
    return risen + now.wraps if now.wraps else None


def sample_between(
    before: Reading, now: Reading, seconds: float, *, known: Mapping[str, Count]
) -> CounterSample:
    """Return what happened between two readings.

    Args:
        before: the first.
        now: the second.
        seconds: between them.
        known: all counters that were ever seen: a part of which one is missing has no number.
    """
    shown: dict[str, Any] = {"gauges": now.host, "devices": now.devices, "notes": tuple(now.notes)}
    spent = {
        name: joules_between(before.counts.get(name), now.counts.get(name), seconds)
        for name in known
    }
    cards = _cards(known, spent)
    wholes = [spent[name] for name in known if known[name].part == "host"]
    if wholes and wholes[0] is None:  # parts of it, once, would look as if it had taken less
        return CounterSample(seconds, **shown)
    if wholes and (whole := wholes[0]) is not None:
        if any(joules is None for _, joules in cards):  # then nobody can tell them apart
            cards = []
        sure = tuple((devices, joules or 0.0) for devices, joules in cards)
        # Both are counters of their own: an idle host may seem to take less than its cards.
        beside = max(0.0, whole - sum(joules for _, joules in sure))
        return CounterSample(seconds, ("host",), beside, sure, **shown)
    parts, rest = _rest(known, spent)
    told = tuple((devices, joules) for devices, joules in cards if joules is not None)
    parts += ("card",) if told else ()
    return CounterSample(seconds, parts, rest, told, **shown)


def _sum(found: Sequence[float | None]) -> float | None:
    """Add up; None where one is missing, or there is none."""
    sure = [each for each in found if each is not None]
    return sum(sure) if sure and len(sure) == len(found) else None


def _first(known: Mapping[str, Count], *parts: str) -> str | None:
    """Return the source that is first to count any of some parts."""
    return next((name.partition("/")[0] for name in known if known[name].part in parts), None)


def _cards(
    known: Mapping[str, Count], spent: Mapping[str, float | None]
) -> list[tuple[tuple[str, ...], float | None]]:
    """Return the cards of the first source that counts any."""
    source = _first(known, "card")
    names = [name for name in known if known[name].part == "card"]
    return [(known[n].devices, spent[n]) for n in names if n.partition("/")[0] == source]


def _rest(
    known: Mapping[str, Count], spent: Mapping[str, float | None]
) -> tuple[tuple[str, ...], float | None]:
    """Add up what the first source that counts processors counts of them and of memory."""
    source = _first(known, "cpu", "memory")
    sums = {}
    for part in ("cpu", "memory"):
        of = [n for n in known if known[n].part == part and n.partition("/")[0] == source]
        if (joules := _sum([spent[name] for name in of])) is not None:
            sums[part] = joules
    return tuple(sums), sum(sums.values()) if sums else None


def merge_samples(first: CounterSample | None, second: CounterSample) -> CounterSample:
    """Make one of two samples in a row; the first is dropped if they do not count the same."""
    if first is None:
        return second
    same = first.parts == second.parts and (first.rest is None) == (second.rest is None)
    if not same or [d for d, _ in first.cards] != [d for d, _ in second.cards]:
        return second
    return CounterSample(
        seconds=first.seconds + second.seconds,
        parts=second.parts,
        rest=None if first.rest is None or second.rest is None else first.rest + second.rest,
        cards=tuple(
            (devices, joules + later)
            for (devices, joules), (_, later) in zip(first.cards, second.cards, strict=True)
        ),
        gauges=second.gauges,
        devices=second.devices,
        notes=(*first.notes, *second.notes),
    )


class CounterSampler:
    """Looks at the counters of a host again and again."""

    def __init__(self, read: Callable[[], Reading], clock: Callable[[], float]) -> None:
        """Look for the first time.

        Args:
            read: gives a ``Reading``.
            clock: gives seconds.
        """
        self._read, self._clock = read, clock
        self._at, self._last = clock(), read()
        self._known = dict(self._last.counts)
        self._owed = self._last.notes

    @property
    def age(self) -> float:
        """Seconds since the last look."""
        return self._clock() - self._at

    def sample(self) -> CounterSample:
        """Return what happened since the last look."""
        now, found = self._clock(), self._read()
        self._known |= found.counts
        found.notes, self._owed = self._owed + found.notes, []
        sample = sample_between(self._last, found, now - self._at, known=self._known)
        self._at, self._last = now, found
        return sample
