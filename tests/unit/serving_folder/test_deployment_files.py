"""What one deploys: the files parse, agree with each other and with what a bundle holds.

The flags are those of tensorflow/serving's `model_servers/main.cc`, not those of our server.
"""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from tfde.cli.serve import build_parser as build_serve_parser
from tfde.export.serving_files import BATCHING, BATCHING_NOTE, MODELS_ROOT, MONITORING
from tfde.serving.server.limits import Limits

ROOT = Path(__file__).parents[3]
SERVING = ROOT / "serving"
BASE = SERVING / "kubernetes" / "base"
OVERLAYS = [
    SERVING / "kubernetes" / name for name in ("tensorflow-serving", "embedded", "application")
]
YAML_FILES = sorted(SERVING.rglob("*.yaml"))
EXPORTED = ["query_encoder", "document_encoder", "retriever", "retriever_scann", "documents"]
METRICS_PATH = "/monitoring/prometheus/metrics"  # prometheus_exporter.cc, kPrometheusPath
FLAGS = (ROOT / "tests" / "model_server_flags.txt").read_text().split()


def documents(path):
    return [part for part in yaml.safe_load_all(path.read_text("utf-8")) if part]


def compose():
    return documents(SERVING / "compose.yaml")[0]["services"]


def deployment():
    return documents(BASE / "deployment.yaml")[0]["spec"]["template"]["spec"]


def kustomization(folder):
    return documents(folder / "kustomization.yaml")[0]


def patches(folder):
    texts = (patch["patch"] for patch in kustomization(folder).get("patches", []))
    return [operation for text in texts for operation in yaml.safe_load(text)]


def docker(instruction):
    text = (SERVING / "Dockerfile").read_text().replace("\\\n", "")
    return re.findall(rf"^{instruction} (.*)$", text, re.MULTILINE)


def patched(folder):
    added = (o for o in patches(folder) if o["path"].endswith("/args/-"))
    return [operation["value"] for operation in added]


def arguments():
    """The model server's command lines, by where they stand."""
    return {
        "compose": compose()["model_server"]["command"],
        "kubernetes": deployment()["containers"][0]["args"],
        "tensorflow-serving overlay": patched(OVERLAYS[0]),
        "embedded overlay": patched(OVERLAYS[1]),
        "Dockerfile": json.loads(docker("CMD")[0]),
    }


def flags(where):
    return dict(re.fullmatch(r"--(\w+)=(.+)", argument).groups() for argument in arguments()[where])


def test_every_yaml_parses():
    assert len(YAML_FILES) >= 10
    for path in YAML_FILES:
        assert documents(path), path


@pytest.mark.parametrize("where", ["compose", "kubernetes", "tensorflow-serving overlay",
                                   "Dockerfile"])  # fmt: skip
def test_flags_are_tensorflow_servings(where):
    assert flags(where)
    assert set(flags(where)) <= set(FLAGS)


def application():
    """What `tfde serve` is started with, where it is deployed."""
    in_compose = documents(SERVING / "compose.application.yaml")[0]["services"]["application"]
    changed = {o["path"].rpartition("/")[2]: o["value"] for o in patches(OVERLAYS[2])}
    return {
        "compose": [*in_compose["entrypoint"], *in_compose["command"]],
        "kubernetes": [*changed["command"], *changed["args"]],
    }


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_the_application_is_started_with_flags_that_it_has(where):
    program, command, *arguments = application()[where]
    assert (program, command) == ("tfde", "serve")
    args = build_serve_parser().parse_args(arguments)
    assert (args.bundle, args.host) == ("/bundle", "0.0.0.0")
    assert (args.port, args.rest_api_port, args.http_port) == (8500, 8501, 8502)


def test_the_application_is_asked_where_it_listens():
    service = documents(SERVING / "compose.application.yaml")[0]["services"]["application"]
    assert [port.split(":")[-1] for port in service["ports"]] == ["8500", "8501", "8502"]
    assert ":8502/readyz" in service["healthcheck"]["test"][-1]
    assert "${BUNDLE:?the bundle directory}:/bundle:ro" in service["volumes"]
    changed = {o["path"].rpartition("/")[2]: o["value"] for o in patches(OVERLAYS[2])}
    assert changed["-"] == {"name": "http", "containerPort": 8502}
    probes = {name: changed[name]["httpGet"] for name in changed if name.endswith("Probe")}
    ready = {"port": "http", "path": "/readyz"}
    assert probes == {
        "startupProbe": ready, "readinessProbe": ready,
        "livenessProbe": {"port": "http", "path": "/healthz"},
    }  # fmt: skip
    (service,) = documents(OVERLAYS[2] / "service.yaml")
    assert service["spec"]["ports"] == [{"name": "http", "port": 8502, "targetPort": "http"}]


@pytest.mark.parametrize("where", ["embedded", "application"])
def test_clients_cannot_take_more_memory_than_a_pod_has(where):
    given = flags("embedded overlay")
    if where == "application":
        pairs = (re.fullmatch(r"--(\w+)=(.+)", a) for a in application()["kubernetes"])
        given = dict(pair.groups() for pair in pairs if pair and pair[1] != "host")
        given = {"max_texts": "16384", "max_text_bytes": "65536"} | given  # its defaults
    known = {field.name for field in dataclasses.fields(Limits)}
    limits = Limits(**{name: int(value) for name, value in given.items() if name in known})
    assert set(given) - known <= set(FLAGS)
    threads = 256  # --grpc_max_threads with batching
    taken = threads * limits.max_request_bytes * 5 + limits.max_bytes_in_hand * 35
    assert deployment()["containers"][0]["resources"]["limits"]["memory"] == "8Gi"
    assert taken < 5 * 2**30
    assert limits.max_texts > 0
    assert limits.max_text_bytes > 0


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_batching_is_chosen_by_the_model(where):
    # A retriever's `k` has no batch axis: batching every model would make every search fail.
    assert flags(where)["enable_batching"] == "true"
    assert flags(where)["enable_per_model_batching_parameters"] == "true"


def test_names_of_the_models_and_where_they_lie():
    def models(path):
        message = model_server_config_pb2.ModelServerConfig()
        text_format.Parse(path.read_text(), message)
        return {m.name: (m.base_path, m.model_platform) for m in message.model_config_list.config}

    expected = {name: (f"{MODELS_ROOT}/{name}", "tensorflow") for name in EXPORTED}
    assert models(OVERLAYS[1] / "models.config") == expected
    del expected["retriever_scann"]  # released servers lack its ops
    assert models(BASE / "models.config") == expected
    assert f"${{BUNDLE}}/models:{MODELS_ROOT}:ro" in compose()["model_server"]["volumes"]
    mounts = {m["mountPath"]: m for m in deployment()["containers"][0]["volumeMounts"]}
    assert mounts[MODELS_ROOT]["subPath"] == "bundle/models"
    assert all(mount["readOnly"] for mount in mounts.values())


def test_batching_and_monitoring_are_the_bundles():
    assert (BASE / "batching.config").read_text() == BATCHING_NOTE + BATCHING
    assert (BASE / "monitoring.config").read_text() == MONITORING


def test_configuration_files_are_mounted_where_they_are_read():
    in_bundle = {"models.config", "models.scann.config", "batching.config", "monitoring.config"}
    for where in ("compose", "Dockerfile"):
        read = [Path(v) for name, v in flags(where).items() if name.endswith("_file")]
        assert {path.name for path in read} <= in_bundle
        assert {path.parent for path in read} == {Path("/bundle")}
    assert "${BUNDLE:?the bundle directory}:/bundle:ro" in compose()["model_server"]["volumes"]
    read = [Path(v) for name, v in flags("kubernetes").items() if name.endswith("_file")]
    generated = {c["name"]: c for c in kustomization(BASE)["configMapGenerator"]}
    volumes = {volume["name"]: volume for volume in deployment()["volumes"]}
    config = generated[volumes["config"]["configMap"]["name"]]
    assert {path.name for path in read} <= set(config["files"])
    mount = next(m for m in deployment()["containers"][0]["volumeMounts"] if m["name"] == "config")
    assert {path.parent for path in read} == {Path(mount["mountPath"])}
    assert all((BASE / file).is_file() for file in config["files"])


def test_ports_agree():
    for where in ("compose", "kubernetes", "Dockerfile"):
        assert (flags(where)["port"], flags(where)["rest_api_port"]) == ("8500", "8501")
    assert docker("EXPOSE") == ["8500 8501"]
    published = [port.split(":")[-2:] for port in compose()["model_server"]["ports"]]
    assert published == [["8500", "8500"], ["8501", "8501"]]
    container = deployment()["containers"][0]
    names = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert names == {"grpc": 8500, "rest": 8501}
    services = {s["metadata"]["name"]: s["spec"] for s in documents(BASE / "services.yaml")}
    for service in services.values():
        for port in service["ports"]:
            assert names[port["targetPort"]] == port["port"]
    assert services["model-server"]["clusterIP"] == "None"  # a client goes round the pods itself


def test_metrics_are_scraped_where_they_are():
    path = re.search(r'enable: true, path: "([^"]+)"', MONITORING)[1]
    assert path == METRICS_PATH
    (job,) = documents(SERVING / "monitoring" / "prometheus.yaml")[0]["scrape_configs"]
    assert job["metrics_path"] == path
    assert job["static_configs"] == [{"targets": ["model_server:8501"]}]
    assert "model_server" in compose()
    template = documents(BASE / "deployment.yaml")[0]["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == path
    assert annotations["prometheus.io/port"] == "8501"


def test_compose_mounts_files_that_exist_read_only():
    for service in ("prometheus", "grafana"):
        for volume in compose()[service]["volumes"]:
            if volume.startswith("./"):
                source, _, mode = volume.split(":")
                assert (SERVING / source).is_file()
                assert mode == "ro"


def test_dashboards_are_where_grafana_looks():
    (provider,) = documents(SERVING / "monitoring/grafana/dashboards.yaml")[0]["providers"]
    targets = [volume.split(":")[1] for volume in compose()["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/model_server.json" in targets


def test_probes_ask_what_the_flag_serves():
    container = deployment()["containers"][0]
    assert flags("kubernetes")["enable_grpc_healthcheck_service"] == "true"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"] == {"port": 8500, "service": "PredictionService"}


def test_a_pod_has_the_time_to_stop():
    spec = deployment()
    asleep = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    age = int(re.search(r"max_connection_age_ms=(\d+)", str(arguments()["kubernetes"]))[1]) / 1000
    # gRPC ends connections up to 10 % late and looks up names at most every 30 s.
    assert asleep >= 1.1 * age + 30
    assert spec["terminationGracePeriodSeconds"] >= asleep + 60  # ModelServer's drain_timeout_s
    assert spec["shareProcessNamespace"]
    assert compose()["model_server"]["init"]


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_every_pod_lets_its_clients_go_and_knows_its_cores(folder):
    """An overlay may replace all arguments of the base."""
    container = deployment()["containers"][0]
    replaced = [p["value"] for p in patches(folder) if p["path"].endswith("/containers/0/args")]
    given = replaced[-1] if replaced else container["args"]
    assert "--grpc_channel_arguments=grpc.max_connection_age_ms=10000" in given
    (cores,) = (part for part in container["env"] if part["name"] == "TFDE_CORES")
    assert cores["valueFrom"]["resourceFieldRef"] == {"resource": "requests.cpu"}
    assert float(container["resources"]["requests"]["cpu"]) == 4
    assert not [p for p in patches(folder) if p["path"].endswith("/containers/0/env")]


@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda folder: folder.name)
def test_kustomize_finds_what_it_names(folder):
    this = kustomization(folder)
    assert all((folder / resource).exists() for resource in this["resources"])
    for generated in this.get("configMapGenerator", []):
        assert all((folder / file).is_file() for file in generated.get("files", []))
    container = deployment()["containers"][0]
    for image in this.get("images", []):
        assert image["name"] == container["image"]
    for operation in patches(folder):
        assert operation["path"].startswith("/spec/template/spec/containers/0/")


def test_the_autoscaler_reads_what_the_adapter_gives():
    (autoscaler,) = documents(BASE / "horizontal-pod-autoscaler.yaml")
    rules = documents(SERVING / "monitoring" / "prometheus-adapter.yaml")[0]["rules"]["custom"]
    read = {metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]}
    assert read == {rule["name"]["as"] for rule in rules}
    assert "replicas" not in documents(BASE / "deployment.yaml")[0]["spec"]


def test_images_have_a_version():
    images = [service["image"] for service in compose().values()]
    images += [container["image"] for container in deployment()["initContainers"]]
    images += [line.split()[0] for line in docker("FROM")]
    images += [
        f"{i['newName']}:{i['newTag']}" for o in OVERLAYS for i in kustomization(o)["images"]
    ]
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+", image), image
    stock = {image for image in images if image.startswith("tensorflow/serving")}
    assert stock == {"tensorflow/serving:2.20.0"}  # the TensorFlow that exports bundles


def test_the_image_gets_what_it_copies():
    ignored = (SERVING / "Dockerfile.dockerignore").read_text().split("\n")
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copied = [name for line in docker("COPY") if "--from" not in line for name in line.split()[:-1]]
    assert set(copied) == allowed
    assert all((ROOT / name).exists() for name in copied)
    assert {"setup.py", "setup.cfg", "pyproject.toml", "tfde"} <= set(copied)  # a wheel needs them
    assert docker("USER") == ["10001:10001"]


def fetch(tmp_path, digest=None):
    """Runs the init container's command as Kubernetes would, on a small archive."""
    source = tmp_path / "source" / "bundle" / "models"
    source.mkdir(parents=True)
    (source / "new").write_text("new")
    archive = tmp_path / "bundle.tar.gz"
    tar = ["tar", "-czf", archive, "-C", tmp_path / "source", "bundle"]
    subprocess.run(tar, check=True)
    volume = tmp_path / "volume"
    (volume / "bundle").mkdir(parents=True)
    (volume / "bundle" / "old").write_text("of an earlier start")
    (container,) = deployment()["initContainers"]
    assert kustomization(BASE)["configMapGenerator"][1]["name"] == "bundle"
    done = subprocess.run(
        [*container["command"], *container["args"]],
        cwd=volume,
        env={
            "PATH": os.environ["PATH"],
            "BUNDLE_URL": archive.as_uri(),
            "BUNDLE_SHA256": digest or hashlib.sha256(archive.read_bytes()).hexdigest(),
        },
        capture_output=True,
        check=False,
    )
    return done.returncode, sorted(
        path.relative_to(volume).as_posix() for path in volume.rglob("*") if path.is_file()
    )


def test_the_bundle_is_fetched_whole(tmp_path):
    assert fetch(tmp_path) == (0, ["bundle/models/new"])


def test_another_archive_is_refused(tmp_path):
    code, files = fetch(tmp_path, digest="0" * 64)
    assert code != 0
    assert files == ["bundle.tar.gz"]
