"""What is read of a character is the same on every Python, whatever its Unicode knows."""

import hashlib
import unicodedata

from tfde.text.code_points import LATER, category, combining, decompose

# Made with Python 3.11.7, whose `unicodedata` is of Unicode 14.
PROPERTIES = "6c87f69ed52fcbcc"


def test_every_character_is_as_in_unicode_14():
    digest = hashlib.sha256()
    for code in range(0x110000):
        character = chr(code)
        parts = " ".join(f"{ord(part):x}" for part in decompose(character))
        digest.update(f"{category(character)} {combining(character)} {parts}\n".encode())
    assert digest.hexdigest()[:16] == PROPERTIES


def test_the_later_ones_are_those_that_this_python_knows():
    known = {code for code in LATER if unicodedata.category(chr(code)) != "Cn"}
    assert len(known) == {"14.0.0": 0, "15.0.0": 4489, "15.1.0": 5116}[unicodedata.unidata_version]
