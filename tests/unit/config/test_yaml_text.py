"""YAML of users: what it may cost, and that it means what it says."""

import pytest

from tfde.cli import study, train
from tfde.config.yaml_text import MAX_YAML_BYTES, YamlTextError, check_yaml_file, load_yaml
from tfde.errors import DataError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30)
)
# In each, where the fault is and what is told.
REFUSED = {
    "an alias of aliases": (BOMB, 5, "at most 100000 values, aliases written out"),
    "an alias in itself": ("a: 1\nb: &b [*b]", 2, r"must not stand in itself. Received: '\*b'"),
    "an alias of nothing": ("a: 1\nb: *b", 2, "undefined alias"),
    "deeper than the stack": ("a:\n  " + "[" * 200_000, 2, "at most 64 levels"),
    "too large": ("a: " + "x" * MAX_YAML_BYTES, 1, "at most 1 MiB. Received: '1048579 characters'"),
    "a name twice": ("a: 1\nb: 2\na: 3", 3, "given once. Received: 'a'"),
    "a name twice, in braces": ("x: 1\ny: {a: 1, 'a': 2}", 2, "given once. Received: 'a'"),
    "a tab": ("a:\n\tb: 1", 2, r"blanks, not with tabs. Received: '\\tb: 1'"),
    "a tab after blanks": ("a:\n  b: 1\n  \tc: 2", 3, "blanks, not with tabs"),
    "on": ("stages:\n  on: {}", 2, "a truth value; write \"on\" in quotes. Received: 'on'"),
    "No": ("No: 1", 1, 'a truth value; write "No"'),
    "a number": ("stages:\n  1: {}", 2, 'a number; write "1"'),
    "an exponent": ("a: 1\n1e-3: {}", 2, 'a number; write "1e-3"'),
    "nothing": ("~: 1", 1, 'nothing; write "~"'),
    "a list as a name": ("? [1, 2]\n: 3", 1, "a name must be text"),
    "an alias as a name": ("a: &a x\n*a : 3", 2, "a name must be text"),
    "two documents": ("a: 1\n---\nb: 2", 2, "another document"),
    "a colon": ("a: 1\nb: x: y", 2, "mapping values are not allowed here|in this context"),
    "no end": ("a: 1\nb: 'x", 2, "unexpected end of stream"),
    "a control character": ("a: 1\nb: \x00", 2, r"must be text. Received: '\\x00'"),
    "a tag of Python": ("a: 1\nb: !!python/object/apply:os.system [ls]", 2, "python/object"),
    "a long number": ("a: " + "1" * 5000, 1, "shorter numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_line_with_its_place(case):
    text, line, rule = REFUSED[case]
    with pytest.raises(YamlTextError, match=rule) as caught:
        load_yaml(text)
    assert str(caught.value).startswith(f"line {line}: ")
    assert "\n" not in str(caught.value)


def test_what_is_right_is_read_as_it_was():
    text = """
    base: &base {name: adamw, learning_rate: 1e-3, "on": [yes, 2, ~, 0.5, x]}
    first: {<<: *base, name: sgd}
    10%: *base
    """
    base = {"name": "adamw", "learning_rate": 1e-3, "on": [True, 2, None, 0.5, "x"]}
    assert load_yaml(text) == {"base": base, "first": {**base, "name": "sgd"}, "10%": base}
    assert load_yaml("\ufeffa: 1") == {"a": 1}
    assert load_yaml("a: b\ta") == {"a": "b\ta"}
    assert load_yaml("") is None


@pytest.mark.parametrize("command", [train, study])
@pytest.mark.parametrize("given", ["--run {}", "--run={}"])
def test_commands_name_the_file(command, given, tmp_path, capsys):
    path = tmp_path / "it.yaml"
    for content, told in (
        (b"seed: 1\nseed: 2\n", f"{path}:2: a name must be given once. Received: 'seed'"),
        (b"# \xc3\xbc\nseed: \xff\n", f"{path}:2: must be UTF-8. Received: b'\\xff'"),
        (b"#" * (MAX_YAML_BYTES + 1), f"{path}: YAML must be at most 1 MiB. Received: '1048577 by"),
    ):
        path.write_bytes(content)
        with pytest.raises(SystemExit, match="2"):
            command.build_parser().parse_args([*given.format(path).split(), "--output", "o"])
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_a_path_in_a_recipe_may_be_of_a_file_that_is_no_yaml(tmp_path, capsys):
    recipe, packed = tmp_path / "run.yaml", tmp_path / "topics.tsv.gz"
    recipe.write_text("model: {backbone: b}\nstages: {only: {data: d, steps: 1}}\n")
    packed.write_bytes(b"\x1f\x8b\xff")
    given = ["--run", str(recipe), "--output", "o", "--run.stages.only.topic_clusters", str(packed)]
    args = train.build_parser().parse_args(given)
    assert args.run.stages["only"].topic_clusters == str(packed)
    given[-2] = "--run.model"  # whose fields may stand in a file
    with pytest.raises(SystemExit, match="2"):
        train.build_parser().parse_args(given)
    assert f"{packed}:1: must be UTF-8." in capsys.readouterr().err


def test_a_file_in_a_file_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("model: model.yaml\nstages: {}\n")
    (tmp_path / "model.yaml").write_text("backbone: t5_1.1_base\non: 3\n")
    with pytest.raises(SystemExit, match="2"):
        train.build_parser().parse_args(["--run", "run.yaml", "--output", "o"])
    assert "run.yaml: model.yaml:2: a name must be text" in capsys.readouterr().err


def test_a_file_without_end_is_not_read(tmp_path):
    path = tmp_path / "large.yaml"
    with open(path, "wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(DataError, match=r"at most 1 MiB\. Received: '68719476736 bytes'"):
        check_yaml_file(path)
