"""The names that `tfde` offers."""

import subprocess
import sys

import pytest

import tfde


@pytest.mark.parametrize("name", [name for name in tfde.__all__ if name != "__version__"])
def test_every_name_leads_to_a_documented_object(name):
    value = getattr(tfde, name)
    assert value.__name__ == name
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tfde' has no attribute 'DualEncoders'"):
        tfde.DualEncoders  # noqa: B018


def test_importing_tfde_imports_nothing_large():
    code = "import sys, tfde; print({'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
