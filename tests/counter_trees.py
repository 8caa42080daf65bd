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


def proc(root: Path, *, user: int, idle: int, received: int = 0, sent: int = 0) -> None:
    """Write what Linux counts; 2 of the 3 GB of memory are taken."""
    put(root / "proc/stat", f"cpu  {user} 0 0 {idle} 0 0 0 0 7 0\ncpu0 {user} 0 0 {idle}")
    put(root / "proc/loadavg", "3.25 1.0 0.5 2/345 6789")
    put(root / "proc/meminfo", "MemTotal: 3145728 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB")
    put(
        root / "proc/net/dev",
        "Inter-|   Receive                    |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n"
        "    lo: 999999 1 0 0 0 0 0 0 999999 1 0 0 0 0 0 0\n"
        f"  hsn0:{received} 9 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0",
    )
