"""The command line: one file a command, imported when the command is used.

Commands parse options, call the rooms below, and print; nothing here computes results or changes the store itself.
"""

from __future__ import annotations

import errno
import importlib
import sys
from importlib.metadata import entry_points
from keyword import iskeyword
from typing import NoReturn

import click

from paribus.errors import MissingExtra, ParibusError, did_you_mean
from paribus.masking import mask_output
from paribus.version import described

COMMANDS = {
    "init": "Write a first study into a folder.",
    "import-config": "Write a study from the configuration of another trainer.",
    "studies": "List the studies that come with Paribus, or copy one.",
    "plan": "Show the arms, runs and cost of a study before it runs.",
    "gradients": "Show which arms change the gradient at one step, before they are trained.",
    "run": "Run a study, or continue it, and write its report.",
    "submit": "Submit a study for the scheduler to train.",
    "scheduler": "Train submitted studies, several at a time.",
    "import": "Make finished runs of other trainers runs of a study.",
    "status": "Show the runs of the studies in the store.",
    "report": "Write the tables and figures of a study.",
    "next": "Write the follow-up study that a study's results ask for.",
    "health": "Diagnose a run, a study or a training log.",
    "dashboard": "Watch the studies in a browser, or write them to one file.",
    "cancel": "Cancel the runs of a study, or of one arm.",
    "retry": "Requeue failed and cancelled runs.",
    "up": "Start MLflow, scheduler and dashboard on this machine, and keep them running.",
    "token": "Create, list and revoke tokens for the server of this home folder.",
    "healthcheck": "Check with one real call whether a service works.",
    "note": "Write a note on a study or a run, or show it.",
    "tag": "Add tags to a study or a run, or remove some.",
    "archive": "Leave a study out of lists; all of it is kept.",
    "export": "Write a study into one file, for another machine or for keeping.",
    "restore": "Restore a study from such a file.",
    "delete": "Delete a study and the runs that no other study has.",
    "gc": "Show or delete what no report and no resumable run needs.",
    "audit": "Show which steps of a published table exceed which noise.",
    "runners": "List runners, and install the environments of trainers.",
    "doctor": "Check disk, database, processes, GPUs and engines.",
    "db": "Show, upgrade or copy the database.",
    "recipes": "List the presets, or show one.",
    "schema": "Print the JSON Schema of study files, for editors.",
}
"""Each command's one-line help, so that ``paribus --help`` imports no command."""

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT."""

_RIGHTS = "Check who owns it, and the rights of the folders above it."
_ROOM = "Make room there, then type the same command again."
REFUSALS = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "Name a folder on a disk that can be written.",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.ENOTDIR: "A part of this path is a file: name a folder.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EIO: "The disk may be broken: look at the system's log.",
}
"""What to do where the operating system refuses a file, by the number of its error."""

GROUPS = {
    "Write a study": ("init", "import-config", "studies", "recipes", "runners", "plan", "gradients", "schema"),
    "Run it": ("run", "submit", "scheduler", "import", "cancel", "retry", "up", "token"),
    "Watch it": ("status", "dashboard", "health", "doctor", "healthcheck"),
    "Read the results": ("report", "next", "audit"),
    "Keep them": ("note", "tag", "archive", "export", "restore", "delete", "gc", "db"),
}
"""The commands as ``paribus --help`` lists them."""

EXAMPLES = {
    "init": "paribus init --template clip_grid grid.yaml",
    "import-config": "paribus import-config trl --loss_type dr_grpo --epsilon_high 0.28 --to from_trl.yaml",
    "studies": "paribus studies copy quickstart",
    "recipes": "paribus recipes diff grpo dapo",
    "plan": "paribus plan study.yaml --set seeds.n=5",
    "gradients": "paribus gradients study.yaml --at 3f2a:40",
    "schema": "paribus schema > study.schema.json",
    "run": "paribus run study.yaml --set clip.high=0.24",
    "submit": "paribus submit study.yaml --priority 5",
    "scheduler": "paribus scheduler --slots 2 --until-idle",
    "import": "paribus import runs/* --study mine --name '{arm}-s{seed}'",
    "cancel": "paribus cancel study.yaml",
    "retry": "paribus retry study.yaml",
    "up": "paribus up --slots 2",
    "token": "paribus token create --name laptop --scope run",
    "status": "paribus status study.yaml --state failed",
    "dashboard": "paribus dashboard --export pages.html",
    "health": "paribus health study.yaml",
    "runners": "paribus runners show trl",
    "doctor": "paribus doctor --json",
    "healthcheck": "paribus healthcheck scheduler",
    "report": "paribus report study.yaml --out results",
    "next": "paribus next study.yaml --seeds 8",
    "audit": "paribus audit dapo_table1",
    "note": "paribus note study.yaml 'the first one with the new reward'",
    "tag": "paribus tag study.yaml +good -todo",
    "archive": "paribus archive study.yaml",
    "export": "paribus export study.yaml --to first.tar",
    "delete": "paribus delete study.yaml --yes",
    "restore": "paribus restore first.tar",
    "gc": "paribus gc study.yaml --delete",
    "db": "paribus db backup",
}
"""One example for the help of each command; a test types them."""

GROUP = "paribus.commands"
"""Entry points of commands outside this package: the core doesn't import the dashboards."""

OUTSIDE = {"dashboard": "dashboard", "import-config": "train", "runners": "train"}
"""Their names, and the extra that each needs."""


class Group(click.Group):
    """A group of commands that names the nearest and all of them where a user types another one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named first, and the arguments after it.

        Raises:
            click.UsageError: there is no such command.
        """
        names = self.list_commands(ctx)
        typed = args[0]
        if typed not in names and not typed.startswith("-") and not ctx.resilient_parsing:  # a shell completes words
            there = f"Commands: {', '.join(names)}."
            raise click.UsageError(f"there is no command `{typed}`.{did_you_mean(typed, names)} {there}", ctx)
        return super().resolve_command(ctx, args)


class _LazyGroup(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in OUTSIDE:
            command = _outside(cmd_name)
        else:
            module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
            command = importlib.import_module(f"paribus.cli.{module}").command
        if cmd_name in EXAMPLES:
            command.epilog = f"\b\nExample:\n  {EXAMPLES[cmd_name]}"
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would end with 1, as after an error
            click.echo("\ninterrupted", err=True)
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped = {name for names in GROUPS.values() for name in names}
        others = {"More": tuple(name for name in COMMANDS if name not in grouped)}
        width = max(map(len, COMMANDS))  # one column for all groups
        for title, names in {**GROUPS, **others}.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:<{width}}", COMMANDS[name]) for name in names])


def _outside(name: str) -> click.Command:
    for entry in entry_points(group=GROUP, name=name):
        command: click.Command = entry.load()
        return command
    raise MissingExtra(OUTSIDE[name], f"`paribus {name}`")


def _print_version(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"paribus {described()}")
        context.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show version and commit, and exit.",
)
def paribus() -> None:
    """Ablation studies for RL post-training of language models.

    From one YAML file to one honest ablation table: `paribus init`, then `paribus run study.yaml`
    """


def main() -> None:
    """Run the command line.

    A :class:`ParibusError` is printed without a traceback, and its exit code is used; so is a disk that refuses a file.
    """
    mask_output()
    try:
        paribus(prog_name="paribus")
    except ParibusError as error:
        _end_with(error)
    except BrokenPipeError:  # `paribus status | head`
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in REFUSALS or error.filename is None:
            raise
        _end_with(ParibusError(f"{error.filename}: {error.strerror}. {REFUSALS[error.errno]}"))


def _end_with(error: ParibusError) -> NoReturn:
    separator = "\n" if "\n" in str(error) else " "
    click.echo(f"error {error.code}:{separator}{error}", err=True)
    sys.exit(error.exit_code)
