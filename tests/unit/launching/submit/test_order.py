"""What a machine cannot give is refused before anything is submitted."""

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.submit.order import check_order, wall_seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("2:00", 7200), ("0:01:30", 90), ("48:00", 172800), ("12:34:56", 45296)]
)
def test_wall_times_are_hours_minutes_and_perhaps_seconds(text, seconds):
    assert wall_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "2:60", "0:00", "1-00:00", "-1:00", "2:00\n", "1:2:3"])
def test_other_wall_times_are_refused(text):
    with pytest.raises(ConfigError, match="write hours and minutes"):
        wall_seconds(text)


def test_what_fits_is_taken(order, profile):
    check_order(order(), profile(), "slurm")
    check_order(order(hosts=10, seconds=3600), profile(hosts=10, wall_hours=1.0), "slurm")
    check_order(order(hosts=1), profile(), "local")


@pytest.mark.parametrize(
    ("asked", "machine", "says"),
    [
        ({}, {"batch": {"scheduler": "none"}}, "takes no batch jobs"),
        ({"hosts": 11}, {"hosts": 10}, "asks for 11 hosts, machine 'generic-slurm' has 10"),
        ({"hosts": 6, "allocations": 2}, {"hosts": 10}, "asks for 12 hosts"),
        ({"hosts": 2}, {"backend": "local"}, "the backend 'local' uses one host"),
        ({"allocations": 2}, {"backend": "mpiexec"}, "by the backend 'slurm' alone"),
        ({"seconds": 7200}, {"wall_hours": 1.5}, "at most 1.5 hours"),
        (
            {"seconds": 7200},
            {"limits": ({"hosts": 4, "wall_hours": 1.0},)},
            "gives 1 hosts at most 1 hours",
        ),
        ({"account": None}, {"batch": {"account_needed": True}}, "name yours with --account"),
        ({"seconds": 599}, {"batch": {"drain_seconds": 300}}, "ask for at least 10 minutes"),
        ({"account": "a b"}, {}, "--account is 'a b'"),
        ({"account": "$(touch x)"}, {}, "--account is"),
        ({"queue": "q\n#SBATCH --uid=0"}, {}, "--queue is"),
        ({"queue": "--uid=0"}, {}, "--queue is"),
        ({"after": "1,singleton;x"}, {}, "--after is"),
    ],
)
def test_what_does_not_is_refused_in_a_sentence(order, profile, asked, machine, says):
    made = profile(**machine)
    with pytest.raises(ConfigError) as refused:
        check_order(order(**asked), made, made.backend)
    assert says in str(refused.value)
