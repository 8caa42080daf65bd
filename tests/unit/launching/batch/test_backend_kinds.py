"""What backends can do, and those that another package brings by an entry point."""

import re
import sys
from pathlib import Path

import pytest

from hydragnn_hpo.campaign.backends import backend_on
from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.batch_jobs import (
    BatchJob,
    JobRecords,
    check_batch_request,
    find_own_job,
    query_jobs,
)
from hydragnn_hpo.launching.batch_script import render_batch_script
from hydragnn_hpo.launching.transports import (
    BACKENDS,
    find_backend,
    find_batch_doubts,
    find_scheduler,
    list_schedulers,
)

PLUGIN = """
from hydragnn_hpo.launching.transports import BackendKind
from hydragnn_hpo.launching.transports.pbs_batch import Pbs


class Oar(Pbs):
    name = "oar"
    title = "OAR"
    prefix = "#OAR"
    job_variable = "OAR_JOB_ID"

    def read_head(self):
        return "#!/bin/bash\\n{{options}}\\n"


class Nowhere:
    hosts = ()
    closed = False

    def close(self):
        Nowhere.closed = True


def open_nowhere(machine, run):
    return Nowhere()


KIND = BackendKind(open_nowhere, scheduler=Oar(), outlives=True)
NUMBER = 3
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package of another party, as pip leaves it on ``sys.path``."""

    def write(entry_points: str, module: str = PLUGIN) -> None:
        site = tmp_path / "site"
        about = site / "hpo_oar-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hpo-oar\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[hydragnn_hpo.transports]\n{entry_points}\n")
        (site / "hpo_oar_plugin.py").write_text(module)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, "hpo_oar_plugin", raising=False)

    return write


@pytest.mark.parametrize(
    ("name", "joins", "can_pack", "can_submit", "launcher", "tethered"),
    [
        ("local", False, False, False, "mpiexec", True),
        ("slurm", True, True, True, "srun", False),
        ("mpiexec", False, False, True, "mpiexec", False),
        ("ray", False, False, False, None, False),
    ],
)
def test_a_backend_says_what_it_can(name, joins, can_pack, can_submit, launcher, tethered):
    kind = find_backend(name)
    facts = (kind.joins, kind.can_pack, kind.can_submit, kind.launcher, kind.tethered)
    assert facts == (joins, can_pack, can_submit, launcher, tethered)


def test_the_page_says_of_each_backend_what_the_table_does():
    page = Path(find_backend.__code__.co_filename).with_name("README.md").read_text()
    _, _, table = page.partition("| `outlives` |\n")
    rows = [
        re.findall(r" ([^|]*?) ?(?=\|)", line) for line in table.split("\n\n")[0].split("\n")[1:]
    ]
    told = {row[0].strip("`"): [bool(cell) for cell in row[2:]] for row in rows}
    assert told == {
        name: [
            *(kind.can_submit, kind.joins, kind.can_pack, kind.can_contain),
            *(kind.launcher is not None, kind.outlives),
        ]
        for name, kind in BACKENDS.items()
    }


def test_no_module_compares_the_name_of_a_backend_or_scheduler():
    """A kind says what it can; its name stands in its own files, the table, and messages."""
    package = Path(find_backend.__code__.co_filename).parents[2]
    names = {*BACKENDS, *(scheduler.name for scheduler in list_schedulers())}
    told = [
        f"{path.relative_to(package)}:{number}"
        for room in ("campaign", "launching", "cli", "pipeline")
        for path in sorted((package / room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if any(f'{sign} "{name}"' in line for sign in ("==", "!=") for name in names)
        and "launcher" not in line
    ]
    assert told == []


def test_a_backend_of_another_package_is_found_by_its_entry_point(install, tmp_path):
    with pytest.raises(ConfigError, match="unknown backend 'oar'. Known: .*local, mpiexec, "):
        find_backend("oar")
    install("oar = hpo_oar_plugin:KIND")

    kind = find_backend("oar")

    assert (kind.can_submit, kind.joins, kind.can_pack) == (True, False, False)
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(ConfigError, match=r"min_hosts is 1, but the allocation has 0 hosts"):
        backend_on(MachineConfig(backend="oar"), run, min_hosts=1)
    assert sys.modules["hpo_oar_plugin"].Nowhere.closed
    with pytest.raises(ConfigError, match="does not work with the backend 'oar': use 'slurm'"):
        backend_on(MachineConfig(backend="oar", pack="a"), run)


def test_its_scheduler_writes_scripts_and_knows_its_jobs(install, batch_request, content, profile):
    install("oar = hpo_oar_plugin:KIND")
    machine = profile({"scheduler": "oar", "directives": ()}, backend="oar")

    check_batch_request(batch_request(hosts=2), machine, "oar")
    script = render_batch_script(batch_request(hosts=2, queue="night"), machine, content())

    lines = [line for line in script.splitlines() if line.startswith("#OAR")]
    assert lines == ["#OAR -A mat123", "#OAR -q night"]
    assert find_own_job({"OAR_JOB_ID": "17"})[:2] == ("oar", "17")
    assert list(find_batch_doubts(machine)) == []


def test_its_jobs_can_be_looked_at_where_the_package_is_missing(tmp_path):
    records = JobRecords(tmp_path)
    records.folder.mkdir()
    job = BatchJob("17", "oar", "001.sh", hosts=2, link=1, jobs=4, submitted=1.0)
    records.add(job)
    assert records.jobs() == [job]
    assert query_jobs("oar", ["17"]) is None


@pytest.mark.parametrize(
    ("entry_point", "module", "says"),
    [
        ("oar = hpo_oar_plugin:KIND", "import no_such_module\n", "No module named"),
        ("oar = hpo_oar_plugin:GONE", PLUGIN, "no attribute 'GONE'"),
        ("oar = hpo_oar_plugin:NUMBER", PLUGIN, "it is no BackendKind, but int"),
    ],
)
def test_a_broken_package_is_named(install, caplog, entry_point, module, says):
    install(entry_point, module)
    with pytest.raises(ConfigError, match=f"'oar' of the package 'hpo-oar' .*{says}.*: repair"):
        find_backend("oar")
    built_in = ["slurm", "pbs"]
    assert [each.name for each in list_schedulers()][:2] == built_in, "others still work"
    assert "hpo-oar" in caplog.text


def test_a_package_does_not_replace_a_backend_of_ours(install):
    install("slurm = hpo_oar_plugin:KIND")
    assert find_backend("slurm") is BACKENDS["slurm"]


def test_an_unknown_scheduler_is_refused_with_all_known(profile):
    with pytest.raises(ConfigError, match="unknown scheduler 'slrum'. Did you mean 'slurm'"):
        find_scheduler("slrum")
    with pytest.raises(ConfigError, match="unknown backend 'slrum'. Did you mean 'slurm'"):
        list(find_batch_doubts(profile(backend="slrum")))


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        ("aurora", {"backend": "slurm"}, "the backend 'slurm' needs Slurm."),
        ("frontier", {"backend": "mpiexec"}, "the backend 'mpiexec' needs PBS."),
        ("aurora", {"directives": ("--nodes=2",)}, "PBS has no options that begin with --."),
    ],
)
def test_what_is_probably_not_meant_is_doubted(base, changes, says):
    machine = find_profile(base)
    assert list(find_batch_doubts(machine)) == []
    batch = machine.batch.model_copy(update=changes)
    (doubt,) = find_batch_doubts(machine.model_copy(update={"batch": batch, **changes}))
    assert doubt.endswith(says)
