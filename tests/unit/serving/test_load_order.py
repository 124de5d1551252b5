"""The order in which versions load, and the latest of those that are there: by hand."""

from tfde.serving.server.load_order import LoadOrder
from tfde.serving.server.served_version import ServedVersion, State, latest

NAMES = ("retriever", "documents", "encoder")


def versions(*names):
    return {name: {1: ServedVersion(name, 1, f"/{name}/1")} for name in names}


def due(order, models, configured=NAMES):
    return [version.name for version in order.take_due(configured, models)]


def test_what_is_first_loads_alone():
    models = versions(*NAMES)
    order = LoadOrder(["retriever", "documents"])
    order.add(models["encoder"][1])  # whatever order they are seen in
    assert due(order, {"encoder": models["encoder"]}) == []
    order.add(models["retriever"][1])
    order.add(models["documents"][1])
    assert due(order, models) == ["retriever", "documents"]
    assert due(order, models) == []
    models["documents"][1].state = State.AVAILABLE
    models["retriever"][1].state = State.LOADING
    assert due(order, models) == []
    models["retriever"][1].state = State.AVAILABLE
    assert due(order, models) == ["encoder"]
    later = ServedVersion("encoder", 2, "/encoder/2")  # an upgrade knows no order
    order.add(later)
    models["retriever"][2] = ServedVersion("retriever", 2, "/retriever/2")
    assert order.take_due(NAMES, models) == [later]


def test_one_that_fails_keeps_nobody_waiting():
    models = versions(*NAMES)
    order = LoadOrder(["retriever"])
    order.add(models["encoder"][1])
    models["retriever"][1].state = State.END
    assert due(order, models) == ["encoder"]


def test_without_an_order_all_are_due():
    models = versions("encoder")
    for order in (LoadOrder([]), LoadOrder(["not of the configuration"])):
        order.add(models["encoder"][1])
        assert due(order, models) == ["encoder"]


def test_an_upgrade_while_others_load_for_the_first_time():
    """Texts of version 2 are not there yet: nobody may find by version 2."""
    models = versions(*NAMES)
    for name in ("retriever", "documents"):
        models[name][1].state = State.AVAILABLE
    models["retriever"][2] = ServedVersion("retriever", 2, "/retriever/2")
    models["retriever"][2].state = State.AVAILABLE
    assert latest({1, 2}, models, NAMES) == 1
    models["documents"][2] = ServedVersion("documents", 2, "/documents/2")
    models["documents"][2].state = State.AVAILABLE
    assert latest({1, 2}, models, NAMES) == 2
    assert latest({1, 2}, models, ()) == 2  # of models that do not belong together
