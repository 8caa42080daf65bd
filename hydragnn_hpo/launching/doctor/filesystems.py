"""Kinds of file systems: on which one a path lies, and whether other hosts see it too."""

from pathlib import Path

SHARED_KINDS = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "afs", "9p", "wekafs", "panfs"),
    *("dvs", "orangefs", "glusterfs"),
)
"""How names of those begin that several hosts see."""


def is_shared(kind: str) -> bool:
    """Say whether several hosts see a file system of this kind."""
    return kind.removeprefix("fuse.").startswith(SHARED_KINDS)


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Give the kind of file system on which a path lies, such as ``ext4`` or ``lustre``."""
    best, kind = "", "unknown"
    where = str(path.resolve())
    for line in mounts.read_text(errors="replace").splitlines():
        _, point, its, *_ = line.split()
        point = point.replace("\\040", " ")  # as the kernel writes a space
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, its
    return kind
