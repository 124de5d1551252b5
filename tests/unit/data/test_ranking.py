"""A query's documents without itself."""

from tfde.data.ranking import without_query


def test_without_the_query():
    found = {"a": 1.0, "q": 9.0, "b": 2.0}
    assert without_query(found, "q") == {"a": 1.0, "b": 2.0}
    assert without_query(found, "q", 1) == {"b": 2.0}
    assert without_query(found, "other", 2) == {"q": 9.0, "b": 2.0}
