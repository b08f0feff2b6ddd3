"""Pools and page tables: nothing is lost, nothing is handed out twice."""

import random

import numpy as np
import pytest
from sparsec_runtime.memory import NULL_PAGE, MemoryPool, OutOfPages
from sparsec_runtime.tables import PageTable, by_scope, stack


def test_a_failed_allocation_changes_nothing_and_says_what_was_missing():
    pool = MemoryPool("main", 4)
    pool.allocate(3)
    with pytest.raises(OutOfPages, match="2 pages needed, 1 free") as caught:
        pool.allocate(2)
    assert (caught.value.needed, caught.value.free, pool.free) == (2, 1, 1)


def test_the_null_page_is_never_handed_out():
    assert NULL_PAGE not in MemoryPool("main", 5).allocate(5)


def test_a_shared_page_is_free_after_its_last_reference():
    pool = MemoryPool("main", 2)
    pages = pool.allocate(1)
    pool.share(pages)
    assert not pool.owned_alone(pages)
    pool.release(pages)
    assert pool.free == 1 and pool.owned_alone(pages)
    pool.release(pages)
    assert pool.free == 2


def test_a_cached_page_outlives_its_request():
    pool = MemoryPool("main", 3)
    pages = pool.allocate(2)
    pool.keep_cached(pages[:1])
    pool.release(pages)
    assert (pool.free, pool.live, pool.cached) == (2, 0, 1)
    pool.check_conserved()
    pool.drop_cached(pages[:1])
    assert pool.free == 3


def test_releasing_twice_is_an_error_of_ours():
    pool = MemoryPool("main", 1)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(pages)


def test_pages_that_two_tables_release_at_once_are_free_once():
    pool = MemoryPool("main", 6)
    pages = pool.allocate(4)
    pool.share(pages[:2])
    pool.release(np.concatenate((pages, pages[1:2])))
    assert pool.free == 5 and pool.live == 1
    assert sorted([*pool.allocate(5), pages[0]]) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(np.concatenate((pages[:1], pages[:1])))


@pytest.mark.parametrize("rows", [1, 3, 12])
def test_slots_are_conserved_under_random_growth_and_shrinking(rows):
    chance, pool = random.Random(rows), MemoryPool("main", 200)
    tables = [PageTable(rows) for _ in range(5)]
    for _ in range(2000):
        table = chance.choice(tables)
        wanted = np.array([chance.randrange(0, 8) for _ in range(rows)], dtype=np.int64)
        if chance.random() < 0.5:
            table.shrink(wanted, pool)
        elif table.missing(wanted) <= pool.free:
            table.grow(wanted, pool)
        held = np.concatenate([t.pages[t.pages != NULL_PAGE] for t in tables])
        assert len(set(held.tolist())) == len(held) == pool.live == sum(int(t.used.sum()) for t in tables)
        pool.check_conserved()


def test_a_batch_of_tables_is_padded_with_the_null_page():
    pool = MemoryPool("main", 9)
    short, long = PageTable(1), PageTable(1)
    short.grow(np.array([1]), pool)
    long.grow(np.array([3]), pool)
    assert stack([short, long]).tolist() == [[[1, 0, 0]], [[2, 3, 4]]]


def test_counts_that_a_scope_cannot_hold_are_an_error_of_ours():
    ragged = np.array([[3, 3], [3, 4]])
    assert by_scope(ragged, "head").tolist() == [3, 3, 3, 4]
    with pytest.raises(AssertionError, match="heads of one layer"):
        by_scope(ragged, "layer")
    with pytest.raises(AssertionError, match="shared table"):
        by_scope(np.array([[3, 3], [4, 4]]), "shared")
