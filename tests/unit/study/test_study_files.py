"""What the copy of a study file hides, however YAML writes it; what is no secret stays as it is."""

from __future__ import annotations

import pytest

from paribus.study.study_files import without_secrets


@pytest.mark.parametrize(
    "value",
    [
        "|\n    hunter2\n    hunter2",
        ">-\n    hunter2",
        "\n    hunter2",
        "two words hunter2",
        '"ab\\"hunter2"',
        "'ab''hunter2'",
        '"abc\n    hunter2"',
        "ab#hunter2",
        "ab,hunter2}x",
        "!!str hunter2",
        "&p hunter2",
        "$hunter2",
        '"${hunter2"',
        "'${X:-hunter2}'",
        "[a, hunter2]",
    ],
)
@pytest.mark.parametrize("name", ["password", '"api\\x5fkey"', "dotted.token", "? secret key\n  "])
def test_values_under_names_of_secrets_are_hidden(name: str, value: str) -> None:
    """Blocks, several words, escapes, comment signs, tags, anchors; what stands before and after stays."""
    shown = without_secrets(f"study: a\nnative:\n  {name}: {value}\n  after: 1\nseeds: {{n: 3}} # three\n")
    assert "hunter2" not in shown
    assert shown.startswith("study: a\nnative:\n  ")
    assert shown.endswith("\n  after: 1\nseeds: {n: 3} # three\n")


@pytest.mark.parametrize(
    "name",
    [
        *("github_token", "wandb_token", "bearer_token", "hub_token", "HF_TOKEN", "token", "my.token", "secret"),
        *("secret_key", "private_key", "aws_secret_access_key", "API-KEY", "apiKey", "my.api_key", "passwd"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    """In block and flow style, in a comment, in options of a command, and in its environment."""
    option = name.replace("_", "-")
    text = (
        f"{name}: hunter2\na: {{{name}: hunter2, b: 1}}\n# {name}: hunter2\n"
        f"args: [--{option}, hunter2, --{option}=hunter2]\n"
        f"run: train --{option} hunter2 --{option}=hunter2 --n 3\nenv: ['{name}=hunter2', N=3]\n"
    )
    shown = without_secrets(text)
    assert "hunter2" not in shown
    assert (shown.count("***"), "--n 3" in shown, "N=3" in shown, "b: 1}" in shown) == (8, True, True, True)


def test_what_is_no_secret_stays() -> None:
    """Variables, empty values, mappings, numbers of tokens, and tokens of a model."""
    text = (
        "native:\n  token:\n  other: 5\n  secret: ~\n  password: ''\n  api_key: ${KEY}\n  auth_token: '${KEY}'\n"
        "  eos_token: </s>\n  pad_token: <pad>\n  max_tokens: 5\n  tokens: 3\n  token: {max: 3, n: [1, 2]}\n"
        "  args: [--tokenizer, a, --token, --max-tokens, '5', --n=3]\n  token :\n    max: 3\n# tokens: 3\n"
    )
    assert without_secrets(text) == text


def test_an_alias_of_a_secret_is_hidden_where_it_is_written() -> None:
    """Its place is that of the anchor."""
    assert without_secrets("a: &p hunter2\nb:\n  password: *p\n").startswith("a: ***\nb:\n")


def test_a_text_without_structure_is_searched_for_names() -> None:
    """One that is no YAML."""
    assert without_secrets("a: [\npassword: hunter2\n") == "a: [\npassword: ***\n"


@pytest.mark.parametrize("name", ["a.", "auth_", "--token", "token ", "password: & ", "'password' ", "a", "secret-"])
def test_long_texts_are_searched_in_one_pass(name: str) -> None:
    """A megabyte, which would else take hours; and aliases that grow are looked at once."""
    rows = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)), "password: hunter2"]
    long = name * (1_000_000 // len(name))
    assert "hunter2" not in without_secrets("\n".join([*rows, f"# {long}"]))
