"""UTF-8 that was read as something else is told, and nothing else is."""

import pytest

from tfde.cli.main import main
from tfde.storage.intake import Intake


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("plain", False),
        ("Où est la gare ? “Ici”", False),
        ("Größe, naïve café", False),
        ("東京はどこですか", False),
        ("Ð is a letter, Ã another", False),
        ("Où est-elle née ?".encode().decode("latin-1"), True),
        ("It’s so – yes".encode().decode("cp1252"), True),
        ("東京".encode().decode("latin-1"), True),
    ],
)
def test_what_is_garbled(text, garbled):
    intake = Intake()
    intake.look_at(text)
    assert intake.garbled == garbled
    assert intake.first_garbled == (text if garbled else "")


def test_a_table_of_such_texts_is_told(tmp_path, capsys):
    rows = [f"Qui est née en {year} ?,C’est Zoé" for year in range(1900, 1903)]
    text = "\n".join(["question,answer", *rows]) + "\n"
    (tmp_path / "good.csv").write_text(text, "utf-8")
    (tmp_path / "bad.csv").write_text(text.encode().decode("cp1252"), "utf-8")
    command = ["convert", "--format", "sentence-transformers", "--split", "train"]
    for name in ("good", "bad"):
        file, output = str(tmp_path / f"{name}.csv"), str(tmp_path / name)
        assert main([*command, "--input", file, "--output", output]) == 0
        error = capsys.readouterr().err
        assert ("4 texts are UTF-8 that was once read as" in error) == (name == "bad")
