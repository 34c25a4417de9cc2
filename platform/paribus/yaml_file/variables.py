"""Variables in the values of a study file: ``${NAME}``, and ``${NAME:-default}`` where the environment has none.

The value is recorded, in the plan, the store and the report. So a variable whose name is that of a secret is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from paribus.errors import did_you_mean
from paribus.masking import is_secret, mask

ANY = re.compile(r"\$\{([^}\n]*)\}?")
_NAMED = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)


def has_variable(text: str) -> bool:
    """Whether a text holds what would be replaced."""
    return "${" in text


def replace_variables(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the text with the values of its variables, and what is wrong with those that have none.

    An empty variable counts as unset where there is a default, as in a shell.
    """
    faults: list[str] = []

    def value(found: re.Match[str]) -> str:
        if has_variable(found[1]):  # the first brace would end it
            faults.append(f"`{found[0][:40]}` holds another variable: a default is plain text")
            return found[0]
        named = _NAMED.fullmatch(found[1])
        if named is None or not found[0].endswith("}"):
            faults.append(
                f"`{found[0][:40]}` is no variable: write ${{NAME}} or ${{NAME:-default}}; in single quotes a text "
                "stays as it is"
            )
            return found[0]
        name, default = named["name"], named["default"]
        if is_secret(name) or mask(environment.get(name, "")) != environment.get(name, ""):
            faults.append(
                f"`{name}` holds a secret, and values of a study are recorded in its plan and report: leave it in the "
                "environment"
            )
            return ""
        if name in environment and (environment[name] or default is None):
            return environment[name]
        if default is None:
            faults.append(
                f"the environment has no variable `{name}`.{did_you_mean(name, environment)} Set it, or write a "
                f"default: ${{{name}:-...}}"
            )
            return ""
        return default

    return ANY.sub(value, text), faults
