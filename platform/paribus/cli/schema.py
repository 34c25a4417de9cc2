"""``paribus schema``: the JSON Schema of study files."""

from __future__ import annotations

import json

import click


@click.command()
def command() -> None:
    """Print the JSON Schema of study files, for completion and checks in editors."""
    from paribus.study.schema import study_schema

    click.echo(json.dumps(study_schema(), indent=1))
