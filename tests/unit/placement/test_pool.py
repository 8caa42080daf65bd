"""The pool of slots, by hand: which ones a trial takes, and that none is given twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.placement.pool import SlotPool

FRONTIER = (0, 1, 6, 7, 2, 3, 4, 5)
"""Pairs {0,1} {6,7} {2,3} {4,5}, quads {0,1,6,7} {2,3,4,5}: ``reference/hpc.md``."""


def machine(hosts, slots=8, **more):
    return SlotPool({f"n{host}": range(slots) for host in range(hosts)}, **more)


def on(host, *indices):
    return tuple(f"n{host}:{index}" for index in indices)


def free_names(pool):
    rows, columns = pool._free.nonzero()
    return tuple(pool._names[row][column] for row, column in zip(rows, columns, strict=True))


def hosts_of(slots):
    return sorted({name.split(":")[0] for name in slots})


def test_ranks_of_a_host_take_its_pairs_and_quads():
    pool = machine(1, slot_order=FRONTIER)
    assert pool.take(2) == on(0, 0, 1)
    assert pool.take(4) == on(0, 2, 3, 4, 5)
    assert pool.take(2) == on(0, 6, 7)
    assert pool.take(1) is None


def test_one_rank_breaks_the_pair_that_is_broken_already():
    pool = machine(1, slot_order=FRONTIER)
    assert pool.take(1) == on(0, 0)
    assert pool.take(4) == on(0, 2, 3, 4, 5)
    assert pool.take(1) == on(0, 1)
    assert pool.take(2) == on(0, 6, 7)


def test_three_ranks_leave_a_whole_quad():
    pool = machine(1, slot_order=FRONTIER)
    assert pool.take(3) == on(0, 0, 1, 6)
    assert pool.take(4) == on(0, 2, 3, 4, 5)
    assert free_names(pool) == on(0, 7)


def test_a_small_trial_goes_to_the_fullest_host_that_still_fits():
    pool = machine(3)
    pool.claim(on(1, 0, 1, 2, 3, 4))
    pool.claim(on(2, 0, 1, 2, 3))
    assert pool.take(2) == on(1, 6, 7)
    assert pool.take(4) == on(2, 4, 5, 6, 7)
    assert pool.take(1) == on(1, 5)


def test_an_aligned_share_comes_before_the_fullest_host():
    pool = machine(2, slots=4)
    pool.claim(on(0, 0, 3))
    assert pool.take(2) == on(1, 0, 1)
    assert pool.take(2) == on(1, 2, 3)
    assert pool.take(2) == on(0, 1, 2)


def test_wide_trials_take_whole_hosts_of_the_group_that_fits_best():
    pool = machine(10, slots=2, hosts_per_group=4)
    assert hosts_of(pool.take(4)) == ["n8", "n9"]
    assert hosts_of(pool.take(8)) == ["n0", "n1", "n2", "n3"]
    assert hosts_of(pool.take(8)) == ["n4", "n5", "n6", "n7"]


def test_hosts_of_a_group_lie_side_by_side():
    pool = machine(8, slots=2)
    pool.close_host("n1")
    pool.close_host("n4")
    assert hosts_of(pool.take(6)) == ["n5", "n6", "n7"]
    assert hosts_of(pool.take(4)) == ["n2", "n3"]


def test_what_exceeds_whole_hosts_stays_in_their_group():
    pool = machine(4, slots=4, hosts_per_group=2)
    pool.claim(on(0, 0, 1))
    pool.claim(on(3, 0, 1))
    # Host 1 is alone in its group, host 2 in the other one: the first wins, and so does host 0.
    assert pool.take(6) == on(1, 0, 1, 2, 3) + on(0, 2, 3)
    assert pool.take(6) == on(2, 0, 1, 2, 3) + on(3, 2, 3)
    pool = machine(6, slots=4, hosts_per_group=2)
    for host in (0, 1, 2, 3):
        pool.claim(on(host, 0, 1))
    pool.claim(on(5, 2, 3))
    assert pool.take(6) == on(4, 0, 1, 2, 3) + on(5, 0, 1)


def test_many_ranks_of_a_host_leave_its_whole_shares():
    pool = machine(1)
    pool.claim(on(0, 7))
    assert pool.take(5) == on(0, 0, 1, 4, 5, 6)


def test_what_fits_no_single_host_is_spread_over_the_freest():
    pool = machine(3, slots=4)
    for host, used in ((0, 1), (1, 3), (2, 2)):
        pool.claim(on(host, *range(used)))
    assert pool.take(5) == on(0, 1, 2, 3) + on(2, 2, 3)
    assert free_names(pool) == on(1, 3)


def test_a_rank_that_needs_its_device_takes_all_its_lanes():
    pool = machine(2, slots=4)
    assert pool.take(1) == on(0, 0)
    assert pool.room(2) == 3
    assert pool.take(1, lanes=2) == on(0, 2, 3)
    assert pool.take(2, lanes=2) == on(1, 0, 1, 2, 3)
    assert pool.take(1, lanes=2) is None
    assert pool.free == 1


def test_hosts_come_and_go():
    pool = machine(2, slots=2)
    first = pool.take(2)
    pool.close_host("n0")
    pool.give_back(first)
    assert (pool.total, pool.free, pool.hosts) == (2, 2, ("n1",))
    pool.add_host("n0", on(0, 0, 1))
    pool.add_host("n2", on(2, 0, 1, 2))
    assert (pool.total, pool.free) == (7, 7)
    assert pool.take(3) == on(2, 0, 1, 2)
    pool.close_host("unknown")
    pool.give_back(("unknown:0",))
    assert pool.free == 4


def test_names_say_which_slots_a_host_has():
    pool = SlotPool.of(("x:y:1", "x:y:0", "z:0"))
    assert pool.take(2) == ("x:y:0", "x:y:1")
    assert pool.take(1) == ("z:0",)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 7),
    st.sampled_from((1, 2, 4, 6, 8)),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from((1, 2)), st.booleans()), max_size=25),
)
@pytest.mark.parametrize("order", [(), FRONTIER])
def test_no_slot_is_given_twice_and_all_come_back(order, hosts, slots, wishes):
    pool = machine(hosts, slots, hosts_per_group=3, slot_order=order)
    taken: dict[int, tuple[str, ...]] = {}
    for number, (width, lanes, back) in enumerate(wishes):
        room = pool.room(lanes)
        free = pool.free
        got = pool.take(width, lanes)
        assert (got is not None) == (1 <= width <= room)
        if got is not None:
            taken[number] = got
            assert len(got) == len(set(got)) == width * lanes == free - pool.free
        if back and taken:
            pool.give_back(taken.pop(min(taken)))
        held = [name for names in taken.values() for name in names]
        assert len(held) == len(set(held)) == pool.total - pool.free
        assert not set(held) & set(free_names(pool))
    for names in taken.values():
        pool.give_back(names)
    assert pool.free == pool.total == hosts * slots


def two_allocations():
    """Three hosts in one allocation, two in another, four slots each."""
    hosts = ("n0@a", "n1@a", "n2@a", "n0@b", "n1@b")
    return SlotPool({host: range(4) for host in hosts})


def test_no_trial_gets_slots_of_two_allocations():
    """8 slots fit into the second one exactly; then the first has 12, and the second none."""
    pool = two_allocations()
    assert (pool.total, pool.widest) == (20, 12)
    assert hosts_of(pool.take(8)) == ["n0@b", "n1@b"]
    assert pool.take(16) is None
    assert hosts_of(pool.take(5)) in (["n0@a", "n1@a"], ["n1@a", "n2@a"])
    assert pool.free == 7
    pool.give_back(["n0@b:0", "n0@b:1"])
    assert pool.take(8) is None, "9 are free, but 7 and 2"
    assert {name.partition("@")[2][0] for name in pool.take(6)} == {"a"}


def test_an_allocation_that_joins_is_another_one():
    pool = SlotPool({"n0@a": range(2)})
    for host in ("n0@b", "n1@b"):
        pool.add_host(host, [f"{host}:0", f"{host}:1"])
    assert (pool.total, pool.widest) == (6, 4)
    assert hosts_of(pool.take(3)) == ["n0@b", "n1@b"]
    pool.close_host("n1@b")
    assert pool.widest == 2
