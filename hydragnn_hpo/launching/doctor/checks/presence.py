"""Whether all hosts answered, and are as many as the profile knows."""

from collections.abc import Mapping

from hydragnn_hpo.launching.doctor.expected import Expected
from hydragnn_hpo.launching.doctor.facts import HostFacts
from hydragnn_hpo.launching.doctor.finding import Finding, State

NO_ANSWER = "no answer in time"
"""What a probe says of a part that it had to kill."""


def check_answers(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Name hosts that did not answer, and parts of a host that hang."""
    found = [
        Finding(
            check="answer",
            state="wrong",
            found=reason,
            expected="one line within the time",
            cure="Tell the site; leave the host out.",
            hosts=(host,),
        )
        for host, reason in expected.missing.items()
    ]
    for host, facts in answers.items():
        found.append(_parts(host, facts.errors))
    return found


def _parts(host: str, errors: Mapping[str, str]) -> Finding:
    state: State = "ok"
    if errors:
        hangs = any(NO_ANSWER in why for why in errors.values())
        state = "wrong" if hangs else "unknown"
    said = "; ".join(f"{part}: {why}" for part, why in errors.items())
    cure = "A driver or file system of the host hangs: tell the site." if state == "wrong" else ""
    return Finding("answer", state, said or "complete", "complete", cure, (host,))


def check_number(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare the number of hosts with that of the whole machine."""
    held, known = len(expected.hosts), expected.profile.hosts
    if expected.here or not known:
        return []
    state: State = "ok" if held <= known else "wrong"
    cure = f"Is this '{expected.profile.name}'? Name the right --machine." if held > known else ""
    return [Finding("number of hosts", state, f"{held:,}", f"at most {known:,}", cure)]
