"""What models are called."""

from tfde.cli.shared_options import name_and_path


def test_a_name_is_given_or_the_end_of_the_path(tmp_path):
    assert name_and_path("runs/sde/best_model", []) == ("sde", "runs/sde/best_model")
    assert name_and_path("SDE=runs/1/model", []) == ("SDE", "runs/1/model")
    assert name_and_path("SDE=runs/2/model", ["SDE"]) == ("SDE (2)", "runs/2/model")
    assert name_and_path("runs/sde/model", ["sde"]) == ("sde (2)", "runs/sde/model")


def test_no_name_twice():
    assert name_and_path("x=a", ["x (2)", "x"]) == ("x (3)", "a")


def test_a_mistyped_path_stays_whole():
    assert name_and_path("runs/lr=0.1/modle", []) == ("modle", "runs/lr=0.1/modle")


def test_a_path_may_hold_the_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rate=3" / "model").mkdir(parents=True)
    assert name_and_path("rate=3/model", []) == ("rate=3", "rate=3/model")
