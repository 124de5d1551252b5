"""The dashboard and the autoscaler ask for metrics that TensorFlow Serving has, by its labels.

Source: tensorflow/serving (servables/tensorflow/util.cc and saved_model_warmup_util.cc,
batching/batching_session.cc and batching_util.h, util/prometheus_exporter.cc) and tensorflow's
cc/saved_model/loader.cc.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

MONITORING = Path(__file__).parents[3] / "serving" / "monitoring"
SERVING = ":tensorflow:serving:"
HISTOGRAMS = {
    SERVING + "request_latency": {"model_name", "API", "entrypoint"},
    SERVING + "runtime_latency": {"model_name", "API", "runtime"},
    SERVING + "model_warmup_latency": {"model_path", "status"},
    SERVING + "batching_session:queuing_latency": {"thread_pool_name"},
    SERVING + "batching_session:input_batch_size": set(),
    SERVING + "batching_session:processed_batch_size": set(),
    SERVING + "batching_session:padding_size": {"execution_batch_size"},
}
KNOWN = {
    SERVING + "request_count": {"model_name", "status"},
    ":tensorflow:cc:saved_model:load_attempt_count": {"model_path", "status"},
    ":tensorflow:cc:saved_model:load_latency": {"model_path"},
    "up": set(),
}
for histogram, its_labels in HISTOGRAMS.items():
    KNOWN |= {f"{histogram}_{part}": its_labels for part in ("sum", "count")}
    KNOWN[f"{histogram}_bucket"] = its_labels | {"le"}
SCRAPED = {"instance", "namespace", "pod"}  # Prometheus adds them

DASHBOARD = json.loads((MONITORING / "grafana" / "model_server.json").read_text("utf-8"))
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
RULES = yaml.safe_load((MONITORING / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
QUERIES = [target["expr"] for panel in PANELS.values() for target in panel["targets"]]
QUERIES += [rule["metricsQuery"] for rule in RULES] + [rule["seriesQuery"] for rule in RULES]


@pytest.mark.parametrize("query", QUERIES)
def test_metrics_and_labels_are_known(query):
    selectors = re.findall(r"([\w:]+)\{([^}]*)\}", query)
    assert selectors
    available = set()
    for metric, matchers in selectors:
        assert metric in KNOWN
        labels = set(re.findall(r"(\w+)\s*(?:=|!)", matchers))
        assert labels <= KNOWN[metric] | SCRAPED
        available |= KNOWN[metric] | SCRAPED
    for grouping in re.findall(r"\bby \(([^)<]*)\)", query):
        assert set(re.split(r",\s*", grouping)) <= available
    assert query.count("(") == query.count(")")
    # A counter is read as a rate; a percentile needs the buckets' limits.
    if "histogram_quantile" in query:
        assert re.search(r"sum by \(le[,)].*_bucket\{", query)


def test_variables_ask_for_known_labels():
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(
                r"label_values\((\S+), (\w+)\)", variable["definition"]
            ).groups()
            assert label in KNOWN[metric] | SCRAPED
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used - {"__rate_interval"} <= names


def test_panels_show_what_operators_need():
    assert {
        "Requests by status", "Latency of requests", "Latency of the runtime", "Batching queue",
        "Batch sizes", "Requests in progress", "Model versions",
    } <= set(PANELS)  # fmt: skip
    latency = [target["expr"] for target in PANELS["Latency of requests"]["targets"]]
    assert [re.search(r"quantile\(([\d.]+)", query)[1] for query in latency] == ["0.5", "0.99"]
    places = [tuple(panel["gridPos"].values()) for panel in PANELS.values()]
    assert len(set(places)) == len(places) == len(DASHBOARD["panels"])
    assert len({panel["id"] for panel in PANELS.values()}) == len(places)
