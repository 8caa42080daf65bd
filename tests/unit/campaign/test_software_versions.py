"""Versions are those of the installed packages; nothing is imported to learn them."""

import platform
import subprocess
import sys

import numpy

import hydragnn_hpo
from hydragnn_hpo.campaign.software_versions import controller_versions, read_software_versions


def test_versions_are_those_that_run():
    found = controller_versions()
    assert found["hydragnn-hpo"] == hydragnn_hpo.__version__
    assert found["python"] == platform.python_version()
    assert found["numpy"] == numpy.__version__
    assert platform.machine() in found["system"]


def test_what_is_not_installed_is_left_out():
    assert read_software_versions(["no-such-package-anywhere"]).keys() == {"python"}


def test_a_login_node_does_not_import_torch_for_it():
    code = (
        "import sys; from hydragnn_hpo.campaign.software_versions import controller_versions;"
        "controller_versions(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
