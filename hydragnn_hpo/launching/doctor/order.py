"""What a doctor asks of every host."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Order:
    """One order for all hosts, given to the probe as its only argument."""

    name: str
    """New with each examination: names files that hosts meet at."""

    folder: str
    """Where all hosts should see each other's files."""

    scratch: str = ""
    """Folder that every host should have for itself; its temporary folder if empty."""

    slots: tuple[str, ...] = ()
    """Cores of each slot, as a profile lists them."""

    interfaces: tuple[str, ...] = ()
    """Of the fabric."""

    libraries: tuple[str, ...] = ()
    """Names or paths of which one can be loaded, best first."""

    sample: tuple[str, ...] = ()
    """Hosts that do what must not be done by thousands at once."""

    seconds: float = 30.0
    """Time for each part."""

    def to_text(self) -> str:
        """Write it as one argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read it on the host."""
        said: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in said.items()
        }
        return cls(**values)

    def samples(self, host: str) -> bool:
        """Say whether a host belongs to the sample, with its domain or without."""
        return short(host) in map(short, self.sample)


def short(host: str) -> str:
    """Give the name of a host without its domain."""
    return host.partition(".")[0]
