"""The manifests as kustomize would build them, and the compose files, against their schemas."""

import re
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose

SERVING = Path(__file__).parents[3] / "serving"
KUBERNETES = SERVING / "kubernetes"
OVERLAYS = ["tensorflow-serving", "embedded", "application", "live-index"]
VERSIONS = ["1.31", "1.37"]
COMPOSE = sorted(SERVING.glob("compose*.yaml"))


def built(folder):
    """The resources of a folder with its patches, by kind and name."""
    this = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = {}
    for name in this["resources"]:
        path = folder / name
        if path.is_dir():
            found |= built(path)
        else:
            resources = filter(None, yaml.safe_load_all(path.read_text()))
            found |= {(r["kind"], r["metadata"]["name"]): r for r in resources}
    for patch in this.get("patches", []):
        target = (patch["target"]["kind"], patch["target"]["name"])
        operations = yaml.safe_load(patch["patch"])
        if isinstance(operations, dict):
            assert operations["$patch"] == "delete"
            del found[target]
            continue
        for operation in operations:
            apply(found[target], operation)
    return found


def apply(resource, operation):
    """Does what RFC 6902 says of `add`, `replace` and `remove`."""
    *parents, last = operation["path"].strip("/").split("/")
    for name in parents:
        resource = resource[int(name) if isinstance(resource, list) else name]
    if operation["op"] in ("replace", "remove"):
        assert last in resource
    if operation["op"] == "remove":
        del resource[last]
        return
    if last == "-":
        resource.append(operation["value"])
    else:
        assert isinstance(resource, dict)
        resource[last] = operation["value"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_are_kubernetes(overlay, version):
    resources = built(KUBERNETES / overlay)
    assert ("Deployment", "model-server") in resources
    for resource in resources.values():
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_wrong_manifest_is_told():
    deployment = built(KUBERNETES / "live-index")["Deployment", "model-server"]
    deployment["spec"]["strategy"]["kind"] = "Recreate"
    with pytest.raises(kubernetes_validate.ValidationError, match="kind"):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


def test_a_live_index_has_one_writer_and_a_volume():
    resources = built(KUBERNETES / "live-index")
    assert ("HorizontalPodAutoscaler", "model-server") not in resources
    spec = resources["Deployment", "model-server"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    given = dict(a.removeprefix("--").split("=", 1) for a in container["args"] if "=" in a)
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    state, key = (mounts[str(Path(given[n]).parent)] for n in ("index", "admin_key_file"))
    assert not state.get("readOnly")
    assert key["readOnly"]
    claim = volumes[state["name"]]["persistentVolumeClaim"]["claimName"]
    (mode,) = resources["PersistentVolumeClaim", claim]["spec"]["accessModes"]
    assert mode == "ReadWriteOncePod"
    assert "secret" in volumes[key["name"]]


def test_an_index_is_taken_from_the_archive_once(tmp_path):
    pod = built(KUBERNETES / "live-index")["Deployment", "model-server"]["spec"]["template"]["spec"]
    container = next(c for c in pod["initContainers"] if c["name"] == "place-index")
    (script,) = container["args"]
    volume, state = tmp_path / "volume", tmp_path / "state"
    (volume / "index").mkdir(parents=True)
    (state / "incoming").mkdir(parents=True)  # of a start that was killed
    (state / "incoming" / "half").write_text("")

    def start(text):
        (volume / "index" / "file").write_text(text)
        command = [*container["command"], script.replace("/state", str(state))]
        subprocess.run(command, cwd=volume, check=True)
        return sorted(path.relative_to(state).as_posix() for path in state.rglob("*"))

    assert start("first") == ["index", "index/file"]
    assert start("second") == ["index", "index/file"]
    assert (state / "index" / "file").read_text() == "first"


def given_values(text):
    """Compose's `${NAME:-default}` and `${NAME:?message}` with values."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return re.sub(r"\$\{\w+(:\?[^}]*)?\}", "/bundle", text)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_files_are_of_compose(path):
    compose = PyCompose.from_yaml(given_values(path.read_text()))
    compose.validate()
    assert compose.service_names()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("restart:", "restarts:", "restarts"),
        ("interval: 10s", "interval: 10 parsecs", "parsecs"),
        ("retries: 3", "retries: three", "retries"),
    ],
)
def test_a_wrong_compose_file_is_told(right, wrong, message):
    text = given_values(COMPOSE[0].read_text())
    assert right in text
    with pytest.raises(ValueError, match=message):
        PyCompose.from_yaml(text.replace(right, wrong)).validate()
