"""The page on the detectors of health."""

from __future__ import annotations

from pages_from_code import REFERENCE, cell
from paribus.health.detector import Detector
from paribus.health.diagnose import DETECTORS
from paribus.health.import_logs import mappings
from paribus.health.profile import load_profile, profile_names
from paribus.health.remedies import catalogue
from paribus.health.signals import SIGNALS

FIGURES = "<!-- Written by benchmarks/health.py. -->\n"
"""Where the figures begin, which `make -C benchmarks detectors` writes."""

NOT_FOR = {
    "staleness": "nothing lags behind",
    "kl_blowup": "`kl: off`",
    "mixed_groups": "groups of one",
    "copied_responses": "groups of one",
    "zero_variance": "groups of one",
    "effective_batch": "groups of one; the filter fills up",
    "clip_saturation_high": "the ratio is 1; no bound",
    "clip_saturation_low": "the ratio is 1; no bound",
    "clip_zero": "the ratio is 1; no bound; ratio of a sequence",
    "format_hacking": "the reward is correctness alone",
}
"""In words, what `why_not` of a detector asks of a recipe."""


def health_page() -> str:
    """Return the detectors with thresholds and remedies, the names that are read, and the figures as they stand."""
    path = REFERENCE / "health.md"
    _, begin, figures = (path.read_text() if path.is_file() else "").partition(FIGURES)
    lines = [
        "# Detectors of health\n",
        "What `paribus health` looks for; [the page for users](../health.md) says how to read it. w is a thirtieth of the planned",
        "points, from 5 to 20; *m of n*: the rule must hold in m of the last n points.\n",
        "| detector | looks for | needs | also looks at | m of n | does not apply |",
        "|---|---|---|---|---|---|",
        *(detector_row(d) for d in DETECTORS),
        "\n## Thresholds\n",
        "Profile `default`. Experimental thresholds are our proposals.\n",
        *threshold_table("default"),
    ]
    for name in profile_names():
        if name != "default":
            profile = load_profile(name)
            lines += [f"\nProfile `{name}`, {profile.about}, in place of these:\n", *threshold_table(name)]
    lines += [
        "\n## Remedies\n",
        "A: ablated in its source; B: argued from the mechanism there; C: practitioners' advice.\n",
    ]
    lines += ["| detector | try | evidence | source | patch |", "|---|---|---|---|---|"]
    for detector, remedies in catalogue().items():
        for r in remedies:
            patch = [f"`{k}: {value_text(v)}`" for k, v in r.patch.items()] + [
                f"`{k}` × {v:g}" for k, v in r.multiply.items()
            ]
            lines.append(f"| {detector} | {cell(r.text)} | {r.evidence} | {cell(r.source)} | {', '.join(patch)} |")
    lines += ["\n## Signals\n", "Beside the [canonical metrics](metrics.md):\n", "| signal | definition |", "|---|---|"]
    lines += [f"| `{name}` | {cell(text)} |" for name, text in SIGNALS.items()]
    lines += ["\n## Names of other trainers\n", "| trainer | name in the log | canonical | |", "|---|---|---|---|"]
    for trainer, table in mappings().items():
        for metric, source in table.items():
            keys = ", ".join(f"`{k}`" for k in source.keys)
            divided = f"divided by `{source.per}`" if source.per else ""
            words = (source.tag if source.tag == "proxy" else "", source.change.replace("_", " "), divided)
            note = ", ".join(filter(None, words))
            lines.append(f"| {trainer} | {keys} | `{metric}` | {note} |")
    return "\n".join(lines) + f"\n\n{begin or FIGURES}{figures}"


def detector_row(d: Detector) -> str:
    """Return a detector as a row of a table."""
    needs = ", ".join(f"`{m}`" for m in d.needs) or " or ".join(f"`{m}`" for m in d.any_of) or "any"
    uses = ", ".join(f"`{m}`" for m in d.uses)
    m, n = (f"{x:g}" for x in d.points) if d.points else (f"{x:g} w" for x in d.confirm)
    return f"| {d.name} | {d.looks_for} | {needs} | {uses} | {m} of {n} | {NOT_FOR.get(d.name, '')} |"


def value_text(value: object) -> str:
    """Return a value as YAML shows it."""
    return "null" if value is None else str(value)


def threshold_table(name: str) -> list[str]:
    """Return the thresholds of a profile as a table; of one that extends the default, those that differ."""
    base = load_profile("default").thresholds
    lines = ["| detector | threshold | value | source |", "|---|---|---:|---|"]
    for detector, thresholds in load_profile(name).thresholds.items():
        for threshold, t in thresholds.items():
            if name == "default" or base[detector][threshold] != t:
                source = f"{cell(t.source)}{' (experimental)' if t.experimental else ''}"
                lines.append(f"| {detector} | {threshold} | {t.value:g} | {source} |")
    return lines
