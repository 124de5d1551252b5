"""What `tfde doctor` finds, on this machine and on one where something is missing."""

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest

from tfde import environment
from tfde.cli.main import main
from tfde.environment import (
    check_folders,
    check_loading,
    check_packages,
    missing_packages,
    requirements,
    usable_cores,
)
from tfde.errors import ConfigError


def distribution(monkeypatch, folder, name, asked):
    """Installs the metadata of a distribution that asks for packages."""
    extras = sorted({line.partition("extra == ")[2].strip("\"'") for line in asked} - {""})
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1"]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {line}" for line in asked]
    info = folder / f"{name.replace('-', '_')}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(lines) + "\n", "utf-8")
    monkeypatch.syspath_prepend(folder)


def test_all_is_well_here(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDE_DATA", str(tmp_path))
    monkeypatch.delenv("TFDE_MINILM", raising=False)
    assert main(["doctor", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(
        r"tfde \S+, Python 3\.1[123]\.\d+, Linux x86_64, \d+ cores \(.*\), \d+ GiB$", lines[0]
    )
    assert f"   ok  tensorflow {importlib.metadata.version('tensorflow')}" in lines
    assert any(re.match(r"   ok  import tensorflow: \d+\.\d s$", line) for line in lines)
    assert any(line.startswith("   ok  devices: CPU:0") for line in lines)
    assert f"   ok  TFDE_DATA={tmp_path}" in lines
    assert any(line.startswith(" note  TFDE_MINILM is not set") for line in lines)
    assert lines[-1].endswith(" as they should be, 0 to mend")


def test_packages_that_are_not_what_is_asked_for(monkeypatch, tmp_path):
    asked = [
        "numpy>=2,<3",
        "scipy<1",
        "no-such-package>=1",
        'no-such-extra>=1; extra == "parquet"',
        'keras>=3; extra == "figures"',
        'another>=1; extra == "dev"',
    ]
    distribution(monkeypatch, tmp_path, "some-tool", asked)
    found = list(check_packages("some-tool"))
    assert [finding.state for finding in found] == ["ok", "wrong", "wrong", "ok", "ok", "note"]
    assert re.match(r"scipy <1: version 1\S+ was not tested and may not fit$", found[1].line)
    assert found[2].line == "no-such-package >=1: not installed"
    assert re.match(r"keras 3\.", found[3].line)
    assert found[5].line == (
        "extra parquet: no-such-extra not installed; pip install 'some-tool[parquet]'"
    )


def test_what_does_not_load_and_folders_that_are_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "scann", None)
    (wrong,) = [finding.line for finding in check_loading() if finding.state == "wrong"]
    assert wrong.startswith("import scann: ModuleNotFoundError: ")
    monkeypatch.setenv("TFDE_MINILM", "/nowhere")
    missing = (
        "TFDE_MINILM=/nowhere: no such folder (all-MiniLM-L6-v2, a start of recipes and studies)"
    )
    assert ("wrong", missing) in list(check_folders())


def test_extras_of_extras_are_followed(monkeypatch, tmp_path):
    asked = ["numpy", 'other-tool[fast]; extra == "gpu"', 'some-tool[gpu]; extra == "all"']
    distribution(monkeypatch, tmp_path, "some-tool", asked)
    distribution(monkeypatch, tmp_path, "other-tool", ['no-such-driver; extra == "fast"'])
    assert missing_packages("some-tool", "gpu") == ["other-tool[fast]"]
    assert missing_packages("some-tool", "all") == ["some-tool[gpu]"]
    assert [r.name for r in requirements("some-tool")] == ["numpy"]


def test_a_server_has_all_text_ops_without_keras():
    """In a process of its own: an op library stays in one."""
    program = """
import sys
from tfde.cli.quick_imports import quick_imports
with quick_imports():
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session as session
    from tfde.environment import load_text_ops

def ops():
    found = op_def_pb2.OpList.FromString(session.TF_GetBuffer(session.TF_GetAllOpList()))
    return {op.name for op in found.op}

before = ops()
load_text_ops()
text_ops = ops() - before
assert "keras" not in sys.modules
import tensorflow_text
assert "keras" in sys.modules, "it can be imported later"
print(len(text_ops), sorted(ops() - before - text_ops))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    )
    number, missing = done.stdout.split(" ", 1)
    assert int(number) > 30
    assert missing.strip() == "[]"


def test_commands_import_keras_alone():
    """Keras without pandas and its like, which are as ever for whoever imports them then."""
    program = """
import sys
from tfde.cli.quick_imports import lighten_imports
if sys.argv[1] == "yes":
    lighten_imports()
import tensorflow, keras
print(sorted({"pandas", "sklearn", "matplotlib"} & set(sys.modules)))
import pandas, sklearn, matplotlib
keras.Sequential([keras.layers.Dense(1)]).predict(pandas.DataFrame({"a": [1.0]}), verbose=0)
"""
    found = []
    for lightened in ("yes", "no"):
        command = [sys.executable, "-c", program, lightened]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(done.stdout.strip())
    assert found[0] == "[]"
    assert "pandas" in found[1]  # otherwise this test says nothing


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "max 100000"}, 3),
        ({"cpu.max": "900000 100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({}, 3),
    ],
)
def test_cores_are_those_that_may_be_kept_busy(monkeypatch, tmp_path, files, cores):
    """Of three that the process is bound to, no more than its container's quota."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    monkeypatch.setattr(environment, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(environment, "_quota", environment._quota.__wrapped__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5})
    monkeypatch.delenv("TFDE_CORES", raising=False)
    assert usable_cores() == cores
    monkeypatch.setenv("TFDE_CORES", "4")
    assert usable_cores() == 4
    for wrong in ("0", "two", "1.5"):
        monkeypatch.setenv("TFDE_CORES", wrong)
        with pytest.raises(ConfigError, match=f"`TFDE_CORES` must be a whole number .*'{wrong}'"):
            usable_cores()
