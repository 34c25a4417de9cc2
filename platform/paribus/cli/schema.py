"""``paribus schema``: the JSON Schema of study files."""

from __future__ import annotations

import json

import click

from paribus.study.schema import study_schema


@click.command()
def command() -> None:
    """Print the JSON Schema of study files, for completion and checks in editors."""
    click.echo(json.dumps(study_schema(), indent=1))
