"""Made-up ``sys`` and ``proc``, in the formats that the documents of each source show."""

from pathlib import Path


def put(path: Path, text: str | int) -> None:
    """Write a file of a kernel, which is never seen half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"{text}\n")
    part.rename(path)


def cray(root: Path, startup: int = 1778580757634187, **joules: int) -> Path:
    """Write counters of a Cray host: ``energy=12044825101``, ``accel0_energy=...``."""
    folder = root / "sys/cray/pm_counters"
    put(folder / "startup", startup)
    put(folder / "power_cap", "2894 W")
    put(folder / "freshness", 60043284)
    for name, value in joules.items():
        unit = "W" if name.endswith("power") else "J"
        put(folder / name, f"{value} {unit} 7810213855886 us")
    return folder


def rapl(root: Path, zone: str, name: str, uj: int, largest: int = 262_143_328_850) -> Path:
    """Write a zone of powercap."""
    folder = root / "sys/class/powercap" / zone
    put(folder / "name", name)
    put(folder / "energy_uj", uj)
    put(folder / "max_energy_range_uj", largest)
    return folder


def gpu(root: Path, card: int, address: str, vendor: str = "0x1002", **files: int) -> Path:
    """Write a GPU; files of its sensors begin with ``energy``, ``power`` or ``temp``."""
    device = root / "sys/devices/pci0000:00" / address
    put(device / "vendor", vendor)
    put(device / "hwmon/hwmon3/name", "amdgpu" if vendor == "0x1002" else "i915")
    for name, value in files.items():
        sensor = name.startswith(("energy", "power", "temp"))
        put(device / ("hwmon/hwmon3" if sensor else ".") / name, value)
    place = root / "sys/class/drm" / f"card{card}"
    if not place.exists():
        place.mkdir(parents=True)
        (place / "device").symlink_to(device)
        (root / "sys/class/drm" / f"card{card}-DP-1").mkdir()
    return device
