"""Interfaces and plugin of the fabric."""

from collections.abc import Mapping

from hydragnn_hpo.launching.doctor.expected import Expected
from hydragnn_hpo.launching.doctor.facts import HostFacts, Network
from hydragnn_hpo.launching.doctor.finding import Finding, State


def check_interfaces(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Find interfaces of the profile that are missing or down."""
    names = expected.order.interfaces
    seen = {host: facts.network for host, facts in answers.items() if facts.network}
    if not names:
        return [
            Finding("fabric interfaces", "ok", ", ".join(sorted(network.known)), hosts=(host,))
            for host, network in seen.items()
        ]
    return [_interfaces(host, network, names) for host, network in seen.items()]


def _interfaces(host: str, network: Network, names: tuple[str, ...]) -> Finding:
    up = [n for n in names if n in network.fabric and network.fabric[n].up]
    addressed = [name for name in up if network.fabric[name].address]
    bad = [name for name in names if name not in addressed]
    state: State = "ok" if not bad else "wrong"
    cure = "Tell the site: traffic goes over fewer wires, or none." if bad else ""
    if not addressed:
        cure = f"This host has {', '.join(sorted(network.known))}: correct 'interfaces', or tell "
        cure += "the site."
    return Finding(
        check="fabric interfaces",
        state=state,
        found=f"{', '.join(addressed) or 'none'} up" + (f"; {', '.join(bad)} not" if bad else ""),
        expected=f"{', '.join(names)} up",
        cure=cure,
        hosts=(host,),
    )


def check_plugin(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Find hosts where the network plugin of RCCL or NCCL cannot be loaded."""
    if not expected.order.libraries:
        return []
    found = []
    for host, facts in answers.items():
        if facts.libraries is None:
            continue
        loaded = facts.libraries.loaded
        why = next(iter(facts.libraries.tried.values()), "")
        found.append(
            Finding(
                check="network plugin",
                state="ok" if loaded else "wrong",
                found=loaded or why,
                expected=" or ".join(expected.order.libraries),
                cure=""
                if loaded
                else "Load its module (rccl-net-plugin, aws-ofi-nccl) or set NCCL_NET_PLUGIN: "
                "without it RCCL takes TCP, 3 to 4 times slower.",
                hosts=(host,),
            )
        )
    return found
