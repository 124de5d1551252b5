"""A query's documents without itself; passages as the documents they are cut from."""

import pytest

from tfde.data.ranking import best_passages, without_query
from tfde.errors import ConfigError


def test_without_the_query():
    found = {"a": 1.0, "q": 9.0, "b": 2.0}
    assert without_query(found, "q") == {"a": 1.0, "b": 2.0}
    assert without_query(found, "q", 1) == {"b": 2.0}
    assert without_query(found, "other", 2) == {"q": 9.0, "b": 2.0}


def test_a_document_has_the_score_of_its_best_passage():
    found = {"a.0": 1.0, "b.1": 4.0, "a.10": 3.0, "1.5.0": -2.0, "b.0": 4.0, "c.0": 2.0}
    assert list(best_passages(found, ".").items()) == [
        ("b", 4.0),
        ("a", 3.0),
        ("c", 2.0),
        ("1.5", -2.0),
    ]
    assert best_passages(found, ".", 2) == {"b": 4.0, "a": 3.0}
    assert best_passages({}, ".", 2) == {}


def test_an_id_that_names_no_document():
    with pytest.raises(ConfigError, match=r"must have an id PARENT#PART. Received: 'a.0'"):
        best_passages({"a.0": 1.0}, "#")
