"""The load test's arrivals, percentiles, sums and refusals."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

SCRIPT = Path(__file__).parents[3] / "serving" / "load_test.py"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPT.parent))  # as `python serving/load_test.py` has it
    spec = importlib.util.spec_from_file_location("load_test_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["load_test_script"] = module
    spec.loader.exec_module(module)
    sys.path.remove(str(SCRIPT.parent))
    return module


def test_arrivals_are_a_poisson_process(script):
    arrivals = sys.modules["load_client"].arrivals
    due = arrivals(np.random.default_rng(0), 200.0, 50.0)
    assert np.all(np.diff(due) > 0)
    assert due[0] > 0
    assert due[-1] < 50
    # The count of 10,000 expected has a standard deviation of 100; gaps are exponential.
    assert abs(len(due) - 10_000) < 400
    assert scipy.stats.kstest(np.diff(due), "expon", args=(0, 1 / 200)).pvalue > 0.01
    again = arrivals(np.random.default_rng(0), 200.0, 50.0)
    np.testing.assert_array_equal(due, again)
    # A rate that expects less than one question in the time gives none or a few, never an error.
    for seed in range(20):
        assert len(arrivals(np.random.default_rng(seed), 0.1, 1.0)) < 5


def test_percentiles_are_of_the_nearest_rank(script):
    shuffled = np.random.default_rng(0).permutation(np.arange(1, 10_001)) / 1000  # 1 to 10,000 ms
    assert script.percentiles_ms(shuffled) == {
        "p50": 5000.0, "p90": 9000.0, "p99": 9900.0, "p99.9": 9990.0, "max": 10_000.0,
    }  # fmt: skip
    thousands = np.arange(1, 3001) / 1000
    assert script.percentiles_ms(thousands)["p99.9"] == 2997.0
    assert set(script.percentiles_ms([0.004]).values()) == {4.0}
    assert script.percentiles_ms([0.001, 0.002, 0.003])["p50"] == 2.0
    assert script.percentiles_ms([]) == {}


def answers(script):
    good = [script.Answer(0.0, 0.010, "OK", "", 0.5)] * 6
    late = [script.Answer(0.020, 0.030, "OK", "", 4.0)] * 2
    busy = [script.Answer(0.0, 0.002, "UNAVAILABLE", "the queue is full", 0.4)] * 2
    return [*good, *busy, *late]


def test_summary(script):
    result = script.summary(5.0, 2.0, answers(script))
    assert result["requests"] == 10
    assert result["answered_per_s"] == 2.0  # 8 good answers; the last came at 4 s
    assert result["latency_ms"]["p50"] == 10.0
    assert result["latency_ms"]["p90"] == 30.0
    assert result["codes"]["OK"]["requests"] == 8
    assert result["codes"]["UNAVAILABLE"]["latency_ms"]["p99"] == 2.0
    assert result["codes"]["UNAVAILABLE"]["example"] == "the queue is full"
    assert result["late_starts"] == 2
    assert result["lateness_ms"]["max"] == 20.0
    lines = script.row(result).splitlines()
    assert lines[0].split() == ["5", "2.0", "10", "2", "10.0", "30.0", "30.0", "30.0", "30.0", "2"]
    assert lines[1] == "  UNAVAILABLE: 2, p50 2.0 ms, p99 2.0 ms: the queue is full"


def test_bounds(script):
    result = script.summary(5.0, 2.0, answers(script))
    assert script.faults(result, None, None) == []
    assert script.faults(result, 30.0, 0.2) == []
    assert script.faults(result, 29.0, 0.1) == [
        "at 5/s: p99 is 30 ms, allowed are 29",
        "at 5/s: 2 of 10 failed, allowed is a share 0.1",
    ]
    nothing = script.summary(5.0, 2.0, answers(script)[6:8])
    assert script.faults(nothing, None, None) == ["at 5/s: no request was answered"]
    assert "nan" in script.row(nothing)


@pytest.fixture
def command(script, tmp_path, monkeypatch, capsys):
    queries = tmp_path / "queries.jsonl"

    def run(*options, lines='{"_id": "1", "text": "a"}\n'):
        queries.write_text(lines)
        argv = ["load_test.py", "--queries", str(queries), *map(str, options)]
        monkeypatch.setattr(sys, "argv", argv)
        try:
            code = script.main()
        except SystemExit as stopped:
            code = stopped.code
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--rate", 0], 1, "`rate` must be in (0, 1e6]. Received: [0.0]"),
        (["--rate", 5, 2e6], 1, "`rate` must be in (0, 1e6]. Received: [5.0, 2000000.0]"),
        (["--rate", 5, "--duration_s", 0], 1, "`duration_s` must be above 0. Received: 0.0"),
        (["--rate", 5, "--timeout_s", -1], 1, "`timeout_s` must be above 0. Received: -1.0"),
        (["--rate", 5, "--warmup_s", -1], 1, "`warmup_s` must be at least 0. Received: -1.0"),
        (["--rate", 5, "-k", 0], 1, "`k` must be at least 1. Received: 0"),
        (["--rate", 5, "--processes", 0], 1, "`processes` must be at least 1. Received: 0"),
        (["--rate", 5, "--target", "host"], 1, "`target` must be HOST:PORT. Received: 'host'"),
        (["--rate", 5, "--target", "localhost:1"], 1, "localhost:1 refuses a first question"),
        (["--rate", "fast"], 2, "must be a number. Received: fast"),
        ([], 2, "the following arguments are required: --rate"),
    ],
)
def test_bad_options_are_one_line(command, options, code, message):
    stopped, errors = command(*options)
    assert stopped == code
    assert message in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"_id": "1", "text": "a"}\n{"_id": "2"}\n', "queries.jsonl:2: field 'text' is missing."),
        ("", "queries.jsonl: must hold at least one query."),
        ("{\n", "queries.jsonl:1: must be JSON"),
    ],
)
def test_bad_queries_are_one_line(command, lines, message):
    stopped, errors = command("--rate", 5, lines=lines)
    assert stopped == 1
    assert message in errors
    assert len(errors.splitlines()) == 1
