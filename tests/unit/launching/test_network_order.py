"""Neighbours in the list of hosts are neighbours in the network."""

from hydragnn_hpo.launching.slurm_allocation import sort_by_number, sort_by_switch

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1,4]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[10-11]
SwitchName=t0 Level=1 LinkSpeed=1 Nodes=n[1,4,10-11] Switches=s[0,2]
SwitchName=t1 Level=1 LinkSpeed=1 Nodes=n[2-3] Switches=s1
"""


def test_hosts_are_sorted_as_their_numbers_count():
    assert sort_by_number(["n10", "n9", "m2", "n1-ib"]) == ["m2", "n1-ib", "n9", "n10"]


def test_hosts_of_one_switch_stand_side_by_side_whatever_is_listed_first():
    hosts = ["a0", *(f"n{number}" for number in (1, 2, 3, 4, 10, 11))]
    backwards = "\n".join(reversed(TREE.splitlines()))

    assert sort_by_switch(hosts, TREE) == ["n1", "n4", "n10", "n11", "n2", "n3", "a0"]
    assert sort_by_switch(hosts, backwards) == ["n10", "n11", "n1", "n4", "n2", "n3", "a0"]


def test_hosts_of_one_block_stand_side_by_side():
    blocks = "BlockName=b1 BlockIndex=0 Nodes=n[1,3]\nBlockName=b2 BlockIndex=1 Nodes=n2\n"

    assert sort_by_switch(["n1", "n2", "n3"], blocks) == ["n1", "n3", "n2"]


def test_without_a_topology_the_numbers_decide():
    assert sort_by_switch(["n10", "n9"], "slurm_load_topo error: none\n") == ["n9", "n10"]
    assert sort_by_switch(["n10", "n9"], "SwitchName=s0 Nodes=n[\n") == ["n9", "n10"]
