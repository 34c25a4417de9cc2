"""The command line: one file a command, imported when it is used."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points

import click

from paribus.errors import MissingExtra, ParibusError

COMMANDS = {
    "plan": "Show what a study comes to, before anything is run.",
    "run": "Run a study, or go on with it, and write its report.",
    "submit": "Put a study into the store, for the scheduler to train.",
    "scheduler": "Train what is submitted, several studies side by side.",
    "status": "Show the runs of the studies in the store.",
    "report": "Write the tables and figures of a study.",
    "next": "Write the study that the results of a study ask for.",
    "health": "Say what is wrong with a run, a study or a training log.",
    "dashboard": "Look at the studies in a browser, live, or write them into one file.",
    "cancel": "Cancel the runs of a study, or of one arm.",
    "retry": "Queue runs again that failed or were cancelled.",
    "doctor": "Look for what may be wrong around the runs.",
    "db": "Look after the database: revision, upgrade, copy.",
    "recipes": "List the presets, or show one.",
    "schema": "Print the JSON Schema of study files, for editors.",
}
"""Command to its one-line help, so that ``paribus --help`` imports no command."""

GROUP = "paribus.commands"
"""Entry points of the commands that lie outside of this package, because the core does not import the web side."""

OUTSIDE = ("dashboard",)
"""The names of these; each is also the name of the extra that it needs."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in OUTSIDE:
            return _outside(cmd_name)
        command: click.Command = importlib.import_module(f"paribus.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _outside(name: str) -> click.Command:
    for entry in entry_points(group=GROUP, name=name):
        command: click.Command = entry.load()
        return command
    raise MissingExtra(name, f"`paribus {name}`")


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="paribus", message="paribus %(version)s")
def paribus() -> None:
    """Ablation studies for RL post-training of language models.

    From one YAML file to one honest ablation table: paribus run STUDY.yaml
    """


def main() -> None:
    """Run the command line; errors of the user end without a traceback and with their exit code."""
    try:
        paribus(prog_name="paribus")
    except ParibusError as error:
        separator = "\n" if "\n" in str(error) else " "
        click.echo(f"error {error.code}:{separator}{error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `paribus status | head`
        sys.stderr.close()
        sys.exit(141)
