"""Prometheus' page holds every count as it is."""

from tfde.serving.server.metrics import Metrics


def test_large_numbers_are_not_rounded():
    metrics = Metrics()
    metrics.count("requests", 1_234_567, status="OK")
    metrics.count("requests", status="OK")
    for _ in range(3):
        metrics.observe("latency", 41_152.263_5)
    lines = metrics.text().splitlines()
    assert 'requests{status="OK"} 1234568' in lines
    (total,) = (line for line in lines if line.startswith("latency_sum"))
    assert float(total.split()[1]) == 3 * 41_152_263_500
    assert "latency_count{} 3" in lines
