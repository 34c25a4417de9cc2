"""Profiles: the thresholds of the detectors, each with its source, in versioned YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from paribus.errors import Problem, StudyFileError, did_you_mean
from paribus.recipe.recipe import fingerprint_of
from paribus.yaml_file.document import Node, locate, plain, read_document
from paribus.yaml_file.messages import explain, validate

_FOLDER = Path(__file__).parent / "profiles"


class Threshold(BaseModel):
    """One number that a rule compares a metric with.

    Attributes:
        value: the number; its unit is that of the metric.
        source: where it comes from.
        experimental: whether it is our own proposal, without a source.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    value: float
    source: str
    experimental: bool = False


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: int
    about: str
    extends: str | None = None
    thresholds: dict[str, dict[str, Threshold]]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The thresholds of all detectors.

    Attributes:
        name: name of the profile, or path of the file.
        version: version of the file.
        about: what it is for.
        thresholds: detector to name to threshold.
    """

    name: str
    version: int
    about: str
    thresholds: Mapping[str, Mapping[str, Threshold]]

    @cached_property
    def numbers(self) -> Mapping[str, Mapping[str, float]]:
        """Detector to name to the number of the threshold."""
        return {d: {name: t.value for name, t in known.items()} for d, known in self.thresholds.items()}

    def of(self, detector: str) -> Mapping[str, float]:
        """Return the thresholds of a detector as numbers."""
        return self.numbers.get(detector, {})

    def experimental(self, detector: str, limit: float | None = None) -> bool:
        """Return whether a finding depends on an experimental threshold.

        Args:
            detector: the detector of the finding.
            limit: the threshold that was exceeded; if it is not in the profile, any experimental threshold counts.
        """
        known = self.thresholds.get(detector, {}).values()
        held = [t.experimental for t in known if t.value == limit]
        return all(held) if held else any(t.experimental for t in known)

    @cached_property
    def identity(self) -> str:
        """Name, version, and the first digits of the hash of all thresholds: ``default 1 (3f2a90c1)``."""
        return f"{self.name} {self.version} ({fingerprint_of(self.numbers)[:8]})"


def profile_names() -> tuple[str, ...]:
    """Return the names of the built-in profiles."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def load_profile(name: str) -> Profile:
    """Return a built-in profile, or one from a YAML file that extends it.

    Raises:
        StudyFileError: there is no such profile, or the file is invalid; all problems are listed.
    """
    if name in profile_names():
        return _read(_FOLDER / f"{name}.yaml", name)
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name), name)
    message = f"there is no profile `{name}`.{did_you_mean(name, profile_names())} Profiles: "
    message += f"{', '.join(profile_names())}; or name a YAML file with `extends: default`"
    raise StudyFileError("--profile", [Problem(message=message)])


def _read(path: Path, name: str) -> Profile:
    root = read_document(path).checked()
    raw = plain(root)
    try:
        file = validate(_File, raw)
    except ValidationError as error:
        found = [_problem(root, e["loc"], explain(e, tuple(_File.model_fields))) for e in error.errors()]
        raise StudyFileError(str(path), found) from error
    if file.extends is None and path.parent != _FOLDER:  # it would lack the thresholds that it does not name
        message = f"`extends` is missing: a profile changes thresholds of one of {', '.join(profile_names())}"
        raise StudyFileError(str(path), [_problem(root, (), message)])
    if file.extends is None:
        return Profile(name=name, version=file.version, about=file.about, thresholds=file.thresholds)
    if file.extends not in profile_names():
        message = f"there is no profile `{file.extends}`; there are {', '.join(profile_names())}"
        raise StudyFileError(str(path), [_problem(root, ("extends",), message)])
    base = load_profile(file.extends)
    unknown = [
        _problem(root, ("thresholds", d, n), f"`{d}` has no threshold `{n}`; it has {_known(base, d)}")
        for d, ts in file.thresholds.items()
        for n in ts
        if n not in base.thresholds.get(d, {})
    ]
    if unknown:
        raise StudyFileError(str(path), unknown)
    merged = {d: {**ts, **file.thresholds.get(d, {})} for d, ts in base.thresholds.items()}
    return Profile(name=name, version=file.version, about=file.about, thresholds=merged)


def _known(profile: Profile, detector: str) -> str:
    return ", ".join(profile.thresholds.get(detector, {})) or "none: there is no such detector"


def _problem(root: Node, place: tuple[str | int, ...], message: str) -> Problem:
    mark = locate(root, place)
    return Problem(message=message, path=".".join(map(str, place)), line=mark.line, column=mark.column)
