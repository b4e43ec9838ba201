"""`graphcache`: the group of commands, each imported only when it is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import click

from graphcache.process.command import run_command_line


class Registered(NamedTuple):
    """Where a command is (`module:attribute`), and its help's first sentence, known without importing it."""

    target: str
    summary: str


# In the order of the help.
COMMANDS = {
    "shapes": Registered("cli.shapes:command", "Show a checkpoint's tensors, from its headers only."),
    "build": Registered("cli.build:command", "Compile the graphs of a model that the cache lacks."),
    "diff": Registered("cli.diff:command", "Say which graphs are stale, why, and what building them costs."),
    "ls": Registered("cli.ls:command", "List the graphs in the cache, sorted by catalog and name."),
    "show": Registered("cli.show:command", "Show one entry: its key, graph, cost and artifact."),
    "prove": Registered("cli.prove:command", "Prove that artifacts compute what their graphs say."),
    "tune": Registered("cli.tune:command", "Compile more ways of each graph, and prove the quickest."),
    "verify": Registered("cli.verify:command", "Check every byte in the cache; optionally rebuilds."),
    "job": Registered("cli.job:command", "Print what to submit to Kubernetes or Slurm to fill the cache."),
    "push": Registered("cli.push:command", "Write entries of the cache to a remote that lacks them."),
    "pull": Registered("cli.pull:command", "Fill the cache from a remote, everything checked."),
    "export": Registered("cli.export:command", "Write artifacts of the cache into one file."),
    "import": Registered("cli.import_:command", "Add the artifacts of an exported file to the cache."),
    "keygen": Registered("cli.keygen:command", "Make a key that signs artifacts."),
    "sign": Registered("cli.sign:command", "Sign entries of the cache that no signature holds for."),
    "log": Registered("cli.log:command", "Show who compiled what, when, with which toolchain."),
    "stats": Registered("cli.stats:command", "Show sizes, hits and compile times of the cache, by catalog."),
    "gc": Registered("cli.gc:command", "Delete entries by size, age or manifest; a dry run unless --yes."),
    "cache-dir": Registered("cli.cache_dir:command", "Print the cache's folder, which need not exist yet."),
    "doctor": Registered("cli.doctor:command", "Show what a build would find on this machine, and what to do."),
}

EPILOG = """
\b
Exit codes:
  0    done, or nothing to do
  1    something to do (diff), a failed compile (build), corruption (verify,
       show), a wrong artifact (prove)
  4    the compiler refuses every graph that failed (build)
  2    an error: bad input, bad usage, an environment that cannot do it
  130  interrupted; 143: terminated; 141: the reader of the output has gone
\b
MODEL is a .safetensors file, an .index.json, a checkpoint folder or a hub
snapshot folder. docs/commands.md describes every command.
"""


class LazyGroup(click.Group):
    """Commands by name from COMMANDS; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        loaded: click.Command = getattr(import_module(module), attribute)
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, registered.summary) for name, registered in COMMANDS.items()])


VERSION_HELP = "Show the version, with the commit of a checkout, and exit."


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from cli.version import version_text

        print(f"graphcache {version_text()}")
        ctx.exit()


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help=VERSION_HELP)
def group() -> None:
    """Compile the graphs of a training run before it holds a card, and keep them."""


def run(args: Sequence[str]) -> int:
    """Run one command line (without the program's name); returns the exit code."""
    return run_command_line(group, "graphcache", args)


def main() -> None:
    """The `graphcache` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
