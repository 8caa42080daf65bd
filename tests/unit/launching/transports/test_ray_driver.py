"""Which hosts of a Ray cluster a run reserves; the cluster's books are kept here, not by Ray."""

import itertools

import pytest

from hydragnn_hpo.launching.transports.ray import JoinCluster

pytest.importorskip("ray", reason="no Ray: pip install 'hydragnn-hpo[ray]'.")
from hydragnn_hpo.launching.transports import ray_driver as module

TOTAL = {"CPU": 8.0, "GPU": 2.0, "memory": 1e9}


class Books:
    """The placement groups of a cluster of four hosts, and what others use of it."""

    def __init__(self):
        self.nodes = {f"n{i}-{i}": {"NodeID": f"id{i}", "Resources": TOTAL} for i in range(1, 5)}
        self.groups = {}
        self.used_by_others = set()
        self.numbers = itertools.count()
        self.created_at_once, self.now = True, 0.0

    def placement_group(self, bundles, *, strategy, name, bundle_label_selector):
        assert bundles == [{"CPU": 8.0, "GPU": 2.0}] * len(bundles), "whole hosts, and no memory"
        assert all(group["name"] != name for group in self.groups.values()), "as Ray demands"
        nodes = [label["ray.io/node-id"] for label in bundle_label_selector]
        number = next(self.numbers)
        nowhere = dict.fromkeys(range(len(nodes)), "")
        group = {"name": name, "state": "PENDING", "nodes": nodes, "bundles_to_node_id": nowhere}
        self.groups[number] = group
        if self.created_at_once:
            self.create()
        return number

    def create(self):
        for group in self.groups.values():
            if group["state"] == "PENDING":
                group["state"] = "CREATED"
                group["bundles_to_node_id"] = dict(enumerate(group["nodes"]))

    def table(self, number=None):
        return self.groups if number is None else self.groups[number]

    def end_group(self, number):
        self.groups[number] |= {"state": "REMOVED", "bundles_to_node_id": {0: ""}}

    def available(self):
        held = {
            node for g in self.groups.values() for node in g.get("bundles_to_node_id", {}).values()
        }
        left = {node["NodeID"]: dict(TOTAL) for node in self.nodes.values()}
        for node in left.keys() & (held | self.used_by_others):
            left[node] = {"memory": 1e9, "CPU": 7.0, "GPU": 2.0} if node not in held else {}
        return left


@pytest.fixture
def books(monkeypatch):
    books = Books()
    monkeypatch.setattr(module, "placement_group", books.placement_group)
    monkeypatch.setattr(module, "placement_group_table", books.table)
    monkeypatch.setattr(module, "remove_placement_group", books.end_group)
    monkeypatch.setattr(module, "available_resources_per_node", books.available)
    monkeypatch.setattr(module.time, "monotonic", lambda: books.now)
    return books


def reservations(hosts=0, excluded=(), reserved=()):
    return module.Reservations(JoinCluster("h:1", "tag", hosts, excluded, reserved))


def update(books, ours, *, extend=True):
    """Look at the cluster twice, as a group that is requested is seen the next time."""
    for _ in range(2):
        result = ours.update(books.nodes, extend=extend)
    return result.reserved


def test_no_more_hosts_are_held_than_wanted_and_none_that_others_use_or_that_is_excluded(books):
    books.used_by_others = {"id1"}
    ours = reservations(hosts=2, excluded=("n3",))
    assert update(books, ours) == ("n2-2", "n4-4")
    assert ours.update(books.nodes, extend=True).usable == 3


def test_hosts_that_become_free_or_join_are_held_by_further_groups(books):
    books.used_by_others = {"id2"}
    late = books.nodes.pop("n4-4")
    ours = reservations()
    assert update(books, ours) == ("n1-1", "n3-3")

    books.used_by_others = set()
    books.nodes["n4-4"] = late

    assert update(books, ours) == ("n1-1", "n2-2", "n3-3", "n4-4")
    assert len(books.groups) == 2
    assert [group["nodes"] for group in books.groups.values()] == [["id1", "id3"], ["id2", "id4"]]


def test_while_a_group_is_on_its_way_no_other_is_requested(books):
    books.created_at_once = False
    ours = reservations(hosts=1)
    assert update(books, ours) == ()
    assert ours.pending
    books.create()
    assert update(books, ours) == ("n1-1",)
    assert not ours.pending
    assert len(books.groups) == 1


def test_a_group_that_others_were_faster_than_is_given_up(books):
    books.created_at_once = False
    ours = reservations(hosts=1)
    update(books, ours)
    books.used_by_others = {"id1"}
    books.created_at_once = True
    books.now = 11.0
    assert update(books, ours) == ("n2-2",)
    assert books.groups[0]["state"] == "REMOVED"


def test_a_group_that_loses_a_host_at_once_is_not_given_up(books):
    books.created_at_once = False
    ours = reservations(hosts=2)
    update(books, ours)
    del books.nodes["n1-1"]
    books.groups[0] |= {"state": "RESCHEDULING", "bundles_to_node_id": {0: "", 1: "id2"}}
    books.created_at_once, books.now = True, 11.0
    assert update(books, ours) == ("n2-2", "n3-3")
    assert books.groups[0]["state"] == "RESCHEDULING"


def test_groups_of_an_earlier_driver_count_and_are_replaced_when_they_end(books):
    update(books, reservations(hosts=2))
    ours = reservations(hosts=2)
    assert update(books, ours) == ("n1-1", "n2-2")
    assert len(books.groups) == 1

    books.end_group(0)

    assert ours.update(books.nodes, extend=True).reserved == ("n1-1", "n2-2"), "at any time"
    assert update(books, ours) == ("n1-1", "n2-2")
    assert books.groups[1]["nodes"] == ["id1", "id2"]


def test_a_new_driver_keeps_to_the_hosts_of_the_lost_one(books):
    ours = reservations(hosts=1, reserved=("n3-3", "n9-9"))
    assert update(books, ours) == ("n3-3",)
    assert books.groups[0]["nodes"] == ["id3"]


def test_a_driver_without_controller_reserves_nothing(books):
    assert update(books, reservations(), extend=False) == ()
    assert not books.groups


def test_groups_of_other_runs_are_none_of_ours(books):
    books.placement_group(
        [{"CPU": 8.0, "GPU": 2.0}],
        strategy="PACK",
        name="hydragnn-hpo/tag2/x",
        bundle_label_selector=[{"ray.io/node-id": "id1"}],
    )
    assert update(books, reservations(hosts=1)) == ("n2-2",)
