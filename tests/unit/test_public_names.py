"""The names that `tfde` offers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfde
from tfde.errors import ConfigError
from tfde.keras_classes import CLASSES


@pytest.mark.parametrize("name", [name for name in tfde.__all__ if name != "__version__"])
def test_every_name_leads_to_a_documented_object(name):
    value = getattr(tfde, name)
    assert value.__name__ == name
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'DualEncoders'; did you mean DualEncoder\?$"):
        tfde.DualEncoders  # noqa: B018
    with pytest.raises(AttributeError, match=r"'load'; instead: `tfde\.DualEncoder\.from_backbone"):
        tfde.load  # noqa: B018
    with pytest.raises(AttributeError, match=r"^module 'tfde' has no attribute 'xyzzy'$"):
        tfde.xyzzy  # noqa: B018
    for kind in (tfde.DualEncoder, tfde.CrossEncoder, tfde.Matcher):
        with pytest.raises(ConfigError, match=rf"{kind.__name__}\.from_backbone\(path\)` for a c"):
            kind("sentence-transformers/all-MiniLM-L6-v2")


def test_importing_tfde_imports_nothing_large():
    code = "import sys, tfde; print({'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_keras_finds_every_class_that_is_registered():
    """What `import tfde` announces is what the modules register when they are imported."""
    sign = r'register_keras_serializable\(package="tfde"\)\nclass (\w+)'
    package = Path(tfde.__file__).parent
    found = {}
    for file in package.rglob("*.py"):
        if names := re.findall(sign, file.read_text("utf-8")):
            module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            found[module] = sorted(names)
    assert found == {module: sorted(names) for module, names in CLASSES.items()}


@pytest.mark.parametrize("others", ["tensorflow, keras", "keras, tensorflow"])
@pytest.mark.parametrize("first", [True, False])
def test_keras_knows_the_classes_in_whatever_order_they_are_imported(first, others):
    """TensorFlow looks for Keras before it imports it."""
    modules = f"tfde, {others}" if first else f"{others}, tfde"
    code = f"import {modules}; print('tfde>DualEncoder' in keras.saving.get_custom_objects())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
