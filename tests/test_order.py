"""Files of tests that take longest are run first by workers."""

from collections import Counter
from types import SimpleNamespace

import pytest

from tests import conftest


def nodeids(seconds: dict[str, float], **worker: object) -> list[str]:
    """The order of five tests in three files, with these seconds of the last run."""
    items = [SimpleNamespace(nodeid=nodeid) for nodeid in ("a::1", "a::2", "b::1", "c::1", "c::2")]
    cache = SimpleNamespace(get=lambda key, default: seconds)
    conftest.pytest_collection_modifyitems(SimpleNamespace(cache=cache, **worker), items)
    return [item.nodeid for item in items]


@pytest.mark.parametrize(
    ("seconds", "files"),
    [
        ({"a": 1.0, "b": 9.0, "c": 2.0}, "bca"),
        ({"a": 1.0, "b": 9.0}, "bca"),  # a new file counts 10 / 3 seconds a test
        ({}, "acb"),
    ],
)
def test_workers_begin_with_the_longest_files(seconds, files):
    order = nodeids(seconds, workerinput={})
    assert list(dict.fromkeys(nodeid[0] for nodeid in order)) == [*files]
    assert Counter(order) == Counter(nodeids({}))
    assert order.index("c::2") == order.index("c::1") + 1


def test_without_workers_the_order_stays():
    assert nodeids({"b": 9.0}) == ["a::1", "a::2", "b::1", "c::1", "c::2"]
