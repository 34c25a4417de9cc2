"""YAML documents: plain values with places, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.errors import Problem, StudyFileError
from paribus.yaml_file.document import MAX_DEPTH, MAX_NODES, locate, parse_document, plain, read_document
from paribus.yaml_file.messages import number_or


def refusal(text: str) -> str:
    """Return the message with which the text is refused."""
    with pytest.raises(StudyFileError) as caught:
        parse_document(text, "f.yaml").checked()
    return str(caught.value)


def problems_of(text: str) -> tuple[Problem, ...] | None:
    """Return the problems of the text; ``None`` if it is a document."""
    try:
        parse_document(text, "f.yaml").checked()
    except StudyFileError as error:
        return error.problems
    return None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("no", "no"), ("yes", "yes"), ("on", "on"), ("off", "off"), ("~", None),
        ("null", None), ("1", 1), ("-3", -3), ("1_000", 1000), ("1.5", 1.5), ("1.0e-6", 1e-6), ("1e-6", "1e-6"),
        ("1.0e6", "1.0e6"), ("1.0e+6", 1e6), ("040", "040"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("0x1F", "0x1F"), ("'1'", "1"), ('"true"', "true"), ("=", "="), (".5", 0.5), ("0", 0),
    ],
)  # fmt: skip
def test_scalars_are_taken_literally_but_for_truth_values_and_plain_numbers(text: str, value: object) -> None:
    """A plain scalar becomes a boolean, a number or null only where no person would mean a word."""
    found = plain(parse_document(f"x: {text}", "f.yaml").checked())["x"]
    assert found == value
    assert type(found) is type(value)


def test_every_value_knows_its_line_and_column() -> None:
    """Keys and values have the places at which an editor shows them."""
    root = parse_document("a: 1\nb:\n  c: [x, yy]\n", "f.yaml").checked()
    assert (locate(root, ("b", "c"), key=True).line, locate(root, ("b", "c"), key=True).column) == (3, 3)
    assert (locate(root, ("b", "c", 1)).line, locate(root, ("b", "c", 1)).column) == (3, 10)
    assert locate(root, ("b", "missing", "deeper")) == locate(root, ("b",))


def test_aliases_are_expanded_to_equal_values() -> None:
    """An anchor may be used again anywhere after it."""
    root = parse_document("a: &x {k: [1, 2]}\nb: *x\n", "f.yaml").checked()
    assert plain(root) == {"a": {"k": (1, 2)}, "b": {"k": (1, 2)}}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\na: 2", "f.yaml:2:1: the key `a` appears twice, first on line 1: keep one"),
        ("a: &x [*x]", "f.yaml:1:8: `*x` stands inside `&x`: the value would contain itself"),
        ("a: *x", "f.yaml:1:4: there is no anchor `&x` before this place"),
        ("a: !!python/name:os.system x", "f.yaml:1:4: tags such as `!!python/name:os.system` are not used here"),
        ("a: 1\n--- \nb: 2", "f.yaml:2:1: a second document begins here: keep one in a file"),
        ("1: x", "f.yaml:1:1: keys are text, and this one is `1`"),
        ("[a]: x", "f.yaml:1:1: keys are text, and this one is a list or mapping"),
        ("b: &b {x: 1}\na: {<<: *b}", "f.yaml:2:5: merge keys (`<<`) are not used here"),
        ("a: b: c", "f.yaml:1:5: not valid YAML"),
        ("a: 'x", "f.yaml:1:6: not valid YAML"),
        ("a\x07b", "f.yaml:1:2: the character U+0007 is not allowed in YAML"),
        ("", "f.yaml:1:1: the file is empty"),
        ("# only a comment\n", "f.yaml:1:1: the file is empty"),
        ("a: " + "9" * 5000, "f.yaml:1:4: a number of 5000 digits is too long"),
        ("[" * 1_000_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("[\n" * 400_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("{a: " * 250_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("- " * 400_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("[" + "1," * MAX_NODES + "]", "this is not a study file"),
    ],
)  # fmt: skip
def test_what_is_not_one_plain_document_is_refused_with_its_place(text: str, line: str) -> None:
    """Duplicate keys, cycles, tags, several documents, odd keys and endless nesting are refused, never followed."""
    assert line in refusal(text)


def test_aliases_cannot_blow_up() -> None:
    """Nested aliases that would expand to billions of values are refused at once."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 10)]
    assert "with its aliases expanded the file has more than" in refusal("\n".join(lines))


def test_nested_aliases_cannot_exceed_the_depth() -> None:
    """Depth counts what aliases bring."""
    lines = ["a0: &a0 [[[x]]]", *(f"a{k}: &a{k} [[[*a{k - 1}]]]" for k in range(1, 12))]
    assert "with its aliases expanded the file is nested more than" in refusal("\n".join(lines))


def test_all_problems_are_told_at_once() -> None:
    """One reading finds every duplicate and every odd key."""
    assert len(refusal("a: 1\na: 2\n3: x\nb: !t y\n").splitlines()) == 3


@given(st.text(max_size=200))
@settings(deadline=None)
def test_any_text_is_a_document_or_is_refused(text: str) -> None:
    """No text leads to another exception than StudyFileError."""
    assert problems_of(text) != ()


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,? \n\t01.e", max_size=80))
@settings(deadline=None)
def test_any_soup_of_yaml_signs_is_a_document_or_is_refused(text: str) -> None:
    """No arrangement of YAML's own signs leads to another exception than StudyFileError."""
    assert problems_of(text) != ()


def test_files_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    """A folder, a missing file, a path under a file, a dangling link, a large and a binary file each have a message."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "large").write_bytes(b"#" * 1_000_001)
    (tmp_path / "binary").write_bytes(b"a: 1\nb: \xff\xfe\n")
    expected = {
        ".": "this is a folder",
        "missing": "No such file",
        "file/below": "Not a directory",
        "link": "No such file",
        "large": "at most 1 MB is read",
        "binary": "binary:2:4: this is not UTF-8 text",
    }
    for name, message in expected.items():
        with pytest.raises(StudyFileError, match=message):
            read_document(tmp_path / name).checked()


def test_a_byte_order_mark_is_no_part_of_the_document(tmp_path: Path) -> None:
    """Files that some editors begin with a byte order mark are read as others."""
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert plain(read_document(path).checked()) == {"a": 1}


def test_half_a_character_is_refused_wherever_it_stands() -> None:
    """A key or value that no message and no file name could hold."""
    for text, column in (('a: "\\ud800"', 4), ('"x\\udfff": 1', 1)):
        assert f"f.yaml:1:{column}: `\\ud{'800' if column == 4 else 'fff'}` is half of a character" in refusal(text)
    assert plain(parse_document('a: "\\U0001f600"', "f.yaml").checked()) == {"a": "\N{GRINNING FACE}"}


def test_a_word_as_long_as_a_file_is_not_repeated_whole() -> None:
    """The message says where it stands."""
    said = refusal(f"? {'x' * 9000}\n: 1\n? {'x' * 9000}\n: 2\n")
    assert said.startswith("f.yaml:3:3: the key `xxx")
    assert len(said) < 1600


@pytest.mark.timeout(120)
def test_a_long_text_of_digits_is_no_number_and_is_seen_at_once() -> None:
    """In linear time: a number with an exponent can be recognized in one way only."""
    digits = "9" * 1_000_000
    assert number_or(digits) == digits
    assert number_or(f"{digits}x") == f"{digits}x"
    assert [number_or(text) for text in ("1e-4", "1.e5", ".5E+1", "-1.5e3")] == [1e-4, 1e5, 5.0, -1500.0]
