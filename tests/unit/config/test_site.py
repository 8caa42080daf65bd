"""What values of a profile may hold, and what is filled in."""

import pytest
from pydantic import TypeAdapter, ValidationError

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.config.path_templates import fill_path
from hydragnn_hpo.config.site import (
    Directive,
    Interface,
    LayoutConfig,
    Module,
    Option,
    Place,
    Plain,
    SiteConfig,
    Title,
    Variable,
    cores_of,
)
from hydragnn_hpo.errors import ConfigError

GOOD = [
    (Variable, "FI_CXI_RDZV_PROTO"),
    (Plain, "hsn0,hsn1 with 'quotes' and ; signs"),
    (Place, "/mnt/bb/$USER"),
    (Place, "${TMPDIR}/hpo"),
    (Interface, "hsn0"),
    (Interface, "enp1s0f0.4093"),
    (Module, "PrgEnv-gnu/8.7.0"),
    (Module, "gcc/13.2.0+cuda"),
    (Option, "--gpus-per-node=8"),
    (Option, "-c7"),
    (Option, "--cpu-bind=list:2-4:10-12"),
    (Directive, "--partition=batch"),
    (Directive, "-C nvme"),
    (Directive, "-l filesystems=home:flare"),
    (Title, "generic-slurm"),
]


@pytest.mark.parametrize(("kind", "text"), GOOD)
def test_what_sites_really_write_is_taken(kind, text):
    assert TypeAdapter(kind).validate_python(text) == text


HOSTILE = ("a\nb", "$(touch x)", "`touch x`", "${A:-$(id)}", "a\x1b[31m", "a\u2028b", "a\x00b")


@pytest.mark.parametrize(
    "kind", [Variable, Plain, Place, Interface, Module, Option, Directive, Title]
)
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("start", ["", "--x=", "/x/"])
def test_what_a_shell_would_take_for_more_is_refused(kind, text, start):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(start + text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Option, "rm"),
        (Option, "--a b"),
        (Option, ""),
        (Option, "--"),
        (Directive, "--comment='x'"),
        (Directive, '--comment="x"'),
        (Directive, "--x;y"),
        (Directive, "--x#y"),
        (Module, "--help"),
        (Module, "a b"),
        (Module, "../a;b"),
        (Interface, "-x"),
        (Interface, "sixteen-letters-"),
        (Place, "relative/path"),
        (Place, "~/scratch"),
        (Title, "../frontier"),
        (Title, "a b"),
        (Variable, "2A"),
        (Variable, "A-B"),
        (Variable, "A=B"),
    ],
)
def test_what_is_no_such_thing_is_refused(kind, text):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(text)


def test_variables_of_a_path_are_filled_in():
    known = {"USER": "ada", "JOB": "12"}
    assert fill_path("/mnt/bb/$USER", known) == "/mnt/bb/ada"
    assert fill_path("${USER}/$JOB-x", {"USER": "/home/ada", "JOB": "12"}) == "/home/ada/12-x"
    assert fill_path("/tmp", {}) == "/tmp"


@pytest.mark.parametrize(
    ("text", "environment", "says"),
    [
        ("/x/$USER", {}, "USER is not set"),
        ("/x/$USER", {"USER": ""}, "USER is not set"),
        ("/x/$USER", {"USER": "a\nb"}, "no part of a path"),
        ("/x/$USER", {"USER": "../../etc"}, "no part of a path"),
        ("/x/$(id)", {"id": "1"}, "only variables"),
        ("/x/`id`", {}, "only variables"),
        ("/x/$1", {"1": "x"}, "only variables"),
        ("/x/${A-b}", {"A": "x"}, "only variables"),
        ("x", {}, "no absolute path"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(text, environment, says):
    with pytest.raises(ConfigError, match=says):
        fill_path(text, environment)


def test_what_was_filled_in_is_not_filled_in_again():
    assert fill_path("/x/$A", {"A": "$B", "B": "secret"}) == "/x/$B"


FRONTIER = {
    0: (3, 0xFE000000000000),
    1: (3, 0xFE00000000000000),
    2: (1, 0xFE0000),
    3: (1, 0xFE000000),
    4: (0, 0xFE),
    5: (0, 0xFE00),
    6: (2, 0xFE00000000),
    7: (2, 0xFE0000000000),
}
"""NUMA domain and mask of each GCD. Source: Frontier user guide (L3 regions and their GPUs); the
same eight masks are printed in LUMI's guide, distribution-binding."""


def mask(cores):
    return sum(1 << core for core in cores)


def test_frontiers_slots_have_the_masks_and_domains_of_its_guide():
    layout = find_profile("frontier").layout
    masks = [mask(cores_of(cores)) for cores in layout.cores_of_slot]
    assert masks == [FRONTIER[slot][1] for slot in range(8)]
    assert list(layout.numa_of_slot) == [FRONTIER[slot][0] for slot in range(8)]
    assert cores_of(layout.reserved) == (0, 8, 16, 24, 32, 40, 48, 56), "first of each L3 region"


def test_frontiers_slots_have_a_network_interface_per_card():
    """Source: Frontier node diagram: each MI250X, a pair of GCDs, has a NIC of its own."""
    nics = find_profile("frontier").layout.nic_of_slot
    assert nics == ("hsn0", "hsn0", "hsn1", "hsn1", "hsn2", "hsn2", "hsn3", "hsn3")


def test_frontiers_ranks_find_what_hpe_amd_and_olcf_recommend():
    """Source: docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html, typed from there."""
    rank = find_profile("frontier").rank
    recommended = """
        NCCL_CROSS_NIC=1
        NCCL_NET_GDR_LEVEL=PHB
        NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
        HSA_FORCE_FINE_GRAIN_PCIE=1
        FI_MR_CACHE_MONITOR=kdreg2
        FI_CXI_DISABLE_HOST_REGISTER=1
        FI_CXI_DEFAULT_CQ_SIZE=131072
        FI_CXI_RDZV_PROTO=alt_read
        FI_CXI_RDZV_EAGER_SIZE=0
        FI_CXI_RDZV_THRESHOLD=0
        FI_CXI_RDZV_GET_MIN=0
        FI_CXI_DEFAULT_TX_SIZE=2048
        FI_CXI_RX_MATCH_MODE=hybrid
    """
    wanted = dict(line.split("=", 1) for line in recommended.split())
    found = {**rank.environment, **rank.many_hosts}
    assert {name: found.get(name) for name in wanted} == wanted
    assert (rank.one_host["NCCL_NET"], rank.many_hosts["NCCL_NET"]) == ("Socket", "OFI")


def test_frontiers_allocations_are_as_long_as_their_size_allows():
    """Source: Frontier user guide, job priority by node count: bins 5, 4 and 3 to 1."""
    hours = find_profile("frontier").longest_hours
    assert [hours(n) for n in (1, 91, 92, 183, 184, 9408)] == [2, 2, 6, 6, 12, 12]


def test_lumis_slots_have_the_masks_that_its_guide_prints():
    """Source: docs.lumi-supercomputer.eu, distribution-binding, GPU binding, hybrid application."""
    layout = find_profile("lumi").layout
    printed = (
        *("fe000000000000", "fe00000000000000", "fe0000", "fe000000"),
        *("fe", "fe00", "fe00000000", "fe0000000000"),
    )
    assert tuple(f"{mask(cores_of(cores)):x}" for cores in layout.cores_of_slot) == printed
    first = [cores_of(cores)[0] for cores in layout.cores_of_slot]
    assert first == [49, 57, 17, 25, 1, 9, 33, 41], "its map_cpu for one thread per rank"
    assert layout.numa_of_slot == (3, 3, 1, 1, 0, 0, 2, 2), "rocm-smi --showtoponuma, printed there"
    hours = find_profile("lumi").longest_hours
    assert [hours(n) for n in (1, 1024, 1025, 2978)] == [48, 48, 6, 6], "standard-g, then bench"


def test_perlmutters_gpus_count_against_its_numa_domains():
    """Source: nvidia-smi topo -m and sysfs of two hosts, as in the profile: GPU i on NUMA 3-i,
    cores 16(3-i) and the 15 after it, NIC 3-i."""
    layout = find_profile("perlmutter").layout
    for gpu in range(4):
        domain = 3 - gpu
        assert layout.numa_of_slot[gpu] == domain
        assert cores_of(layout.cores_of_slot[gpu]) == tuple(range(16 * domain, 16 * domain + 16))
        assert layout.nic_of_slot[gpu] == f"hsn{domain}"


def test_auroras_tiles_have_the_cores_of_its_guide():
    """Source: docs.alcf.anl.gov, running jobs on Aurora: 12 ranks per node; queues of prod."""
    profile = find_profile("aurora")
    scheme = "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"
    assert ":".join(profile.layout.cores_of_slot) == scheme
    assert cores_of(profile.layout.reserved) == (0, 52), "for system services since March 2025"
    for slot, cores in enumerate(profile.layout.cores_of_slot):
        socket = profile.layout.numa_of_slot[slot]
        assert {core // 52 for core in cores_of(cores)} == {socket}, "52 cores per socket"
    assert (profile.rank.accelerator, profile.rank.visible) == ("xpu", "ZE_AFFINITY_MASK")
    sizes = (1, 512, 513, 1024, 1025, 1919, 1920, 10624)
    assert [profile.longest_hours(n) for n in sizes] == [6, 6, 12, 12, 18, 18, 24, 24]


def test_a_cluster_that_nobody_described_is_not_guessed_at():
    profile = find_profile("generic-slurm")
    assert (profile.backend, profile.batch.scheduler) == ("slurm", "slurm")
    assert (profile.slots_per_host, profile.memory_gb, profile.hosts) == (0, 0.0, 0)
    assert profile.layout == LayoutConfig()
    assert (profile.rank.accelerator, profile.rank.visible) == ("", "")
    assert (profile.interfaces, profile.scratch, profile.batch.directives) == ((), None, ())


def test_lists_of_cores():
    assert cores_of("1-3,65") == (1, 2, 3, 65)
    assert cores_of("") == ()
    for wrong in ("3-1", "1,1", "1-3,2", "a", "1;2", "-1", "123456"):
        with pytest.raises(ValueError, match="no list|backwards|twice"):
            cores_of(wrong)


def test_a_layout_describes_all_slots_or_none():
    values = find_profile("frontier").model_dump()
    values["layout"]["numa_of_slot"] = (0, 1)
    with pytest.raises(ValidationError, match="describes 2 slots, slots_per_host is 8"):
        type(find_profile()).model_validate(values)
    assert SiteConfig().layout == LayoutConfig()
