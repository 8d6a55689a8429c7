"""The command line: its commands, and what becomes of errors."""

import sys
import traceback
import warnings
from typing import Annotated, TextIO, cast

import typer

import fedmef
from fedmef.cli.compare import compare
from fedmef.cli.cost import cost
from fedmef.cli.examine import data, evaluate
from fedmef.cli.flower import flower
from fedmef.cli.plain_help import PlainHelp
from fedmef.cli.plan import plan
from fedmef.cli.report import report
from fedmef.cli.reproduce import reproduce
from fedmef.cli.run import run
from fedmef.errors import FedmefError
from fedmef.federation.collection import DeviceError

# What a wrong command line raises: click's error below typer 0.26, typer's own since.
USAGE_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])

HINT = " (--debug shows where)"

app = typer.Typer(
    help="Federated training of sparse convolutional networks on devices with little memory.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # see plain_help
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run, compare, reproduce, cost, plan, report, evaluate, data):
    app.command(cls=PlainHelp)(command)
app.add_typer(flower, name="flower", short_help="Apps for Flower, for a fleet.")


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Set what all commands share; `--debug` itself is read by `main`."""
    if version:
        typer.echo(fedmef.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line: 0 is success, 1 a failure, 2 a user's mistake; one line says what went wrong."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]  # it may stand anywhere
    warnings.showwarning = _show_warning
    try:
        code = app(arguments, standalone_mode=False)
    except USAGE_ERROR as error:
        code = _failed(f"{error.format_message()} (see --help)", 2, debug)
    except FedmefError as error:
        code = _failed(f"{error}{HINT if _device_raised(error) else ''}", error.exit_code, debug)
    except Exception as error:
        code = _failed(f"{type(error).__name__}: {error}{HINT}", 1, debug)
    sys.exit(code)


def _device_raised(error: BaseException | None) -> bool:
    """Whether an error comes from what a device's own code raised, such as a user's method."""
    while isinstance(error, FedmefError):
        error = error.__cause__
    return isinstance(error, DeviceError)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line, without the place in the code; `--debug` is for that."""
    typer.echo(f"fedmef: {message}", err=True)


def _failed(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    typer.echo(f"fedmef: {message}", err=True)
    return code
