"""A run directory that a host of a launcher does not see is refused before anything starts."""

import os
import subprocess

import pytest

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.transports.launched_agents import check_shared_folder

LAUNCHER = """#!/bin/sh
# Runs a command on three hosts, of which those in HIDDEN have something else at the folder's place.
for host in n1 n2 n3; do
    case " $HIDDEN " in
        *" $host "*) SLURMD_NODENAME=$host unshare --mount sh -c '
            mount -t tmpfs none "$1" && shift && exec "$@"' sh "$MOUNTED" "$@" ;;
        *) SLURMD_NODENAME=$host "$@" ;;
    esac
done
"""

pytestmark = pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="file systems of hosts are imitated by mount namespaces, which need root.",
)


@pytest.fixture
def check(tmp_path):
    launcher = tmp_path / "launcher"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o700)
    folder = tmp_path / "shared" / "run" / "agents"
    folder.mkdir(parents=True)

    def run(hidden):
        changes = {"HIDDEN": hidden, "MOUNTED": str(tmp_path / "shared")}
        check_shared_folder([str(launcher)], folder, os.environ | changes)

    return run


def test_a_folder_that_all_hosts_see_is_fine(check):
    check("")


@pytest.mark.parametrize(
    ("hidden", "message"),
    [("n2", "host n2 does not see"), ("n3 n2", r"host n2 \(and 1 more\) does not see")],
)
def test_a_host_that_does_not_see_it_is_named(check, hidden, message):
    with pytest.raises(
        JobError, match=rf"{message}.*/shared/run: put it on storage that all hosts"
    ):
        check(hidden)


def test_a_launcher_that_fails_says_nothing_about_the_folder(tmp_path):
    check_shared_folder([str(tmp_path / "none")], tmp_path, os.environ)
    check_shared_folder(["false"], tmp_path, os.environ)
