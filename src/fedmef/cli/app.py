"""The command line: its commands, each imported when it is used, and what becomes of errors."""

import atexit
import errno
import gc
import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

import fedmef
from fedmef.cli.usage import usage_message
from fedmef.errors import FedmefError, naming_the_extra, printable, unknown_name

# A command's module in this package, and the first line of its help: `fedmef --help` needs no more than that.
COMMANDS = {
    "run": "Train over many devices. Settings come from a TOML file and from options, which win.",
    "compare": "Train several methods on the same data and partition; ends with one table and a report.",
    "reproduce": "Run a table or figure of the paper; ends with our numbers next to the paper's.",
    "cost": "Memory, traffic and time of a device: the paper's estimates next to measurements.",
    "plan": "Find the preferred setting that fits --device-memory, by measuring.",
    "report": "Write a page and figures about finished runs: accuracy, measured memory, bytes, layers.",
    "evaluate": "Test a finished run's model. It needs the run's data set, but not its model's code.",
    "predict": "Name the most likely classes of images, by a finished run's model.",
    "export": "Write a finished run's model as an ONNX, TorchScript or safetensors file.",
    "doctor": "Say what this installation can do: backend, instruction set, threads, versions, memory.",
    "data": "Fetch or check a data set, and say what it holds and where.",
    "flower": "Apps for Flower: the same methods on a fleet of real machines.",
}
HINT = " (--debug shows where)"
CONTROL_C = 130


class LazyCommands(TyperGroup):
    """Imports a command's module when the command is asked for: `fedmef --help` answers at once."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            raise unknown_name("command", cmd_name, COMMANDS)
        return _command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@cache  # the tests ask several hundred times
def _command(name: str) -> Any:
    own: typer.Typer = import_module(f"fedmef.cli.{name}").app
    command = typer.main.get_command(own)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyCommands,
    help="Federated training of sparse convolutional networks on devices with little memory.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # see plain_help
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    # What a wrong command line raises: click's error below typer 0.26, typer's own since.
    usage_error = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])
    try:
        with naming_the_extra():
            code = app(arguments, standalone_mode=False)
        if code == CONTROL_C:  # typer made it of a KeyboardInterrupt
            typer.echo("fedmef: stopped", err=True)
    except usage_error as error:
        code = _failed(f"{usage_message(error)} (see --help)", 2, debug)
    except FedmefError as error:
        code = _failed(f"{error}{HINT if _device_raised(error) else ''}", error.exit_code, debug)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # one that the user gave
            code = _failed(f"{error.filename}: the name is too long; give a shorter one", 2, debug)
        else:
            code = _failed(f"{type(error).__name__}: {error}{HINT}", 1, debug)
    sys.exit(code)


def command(on_interrupt: Any = signal.default_int_handler) -> None:
    """The command `fedmef`: what `main` does, and then out. Ctrl-C is for `on_interrupt` while it does.

    What was loaded is not taken apart one by one: it goes with the process, which saves 0.4 s. Looking for
    garbage among PyTorch's million objects takes as long, so it is done less often.
    """
    gc.set_threshold(100_000, 20, 100)
    code: object = 0
    try:
        signal.signal(signal.SIGINT, on_interrupt)
        main()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:  # between two lines of `main`
        code = CONTROL_C
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: nothing is left to be stopped
    atexit._run_exitfuncs()
    with suppress(OSError):  # nobody may be reading any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


def _device_raised(error: BaseException | None) -> bool:
    """Whether an error comes from what a device's own code raised, such as a user's method."""
    from fedmef.federation.collection import DeviceError  # noqa: PLC0415  (only when something failed)

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
    typer.echo(printable(f"fedmef: {message}"), err=True)


def _failed(message: str, code: int, debug: bool) -> int:
    if debug:
        for line in traceback.format_exc().splitlines():
            typer.echo(printable(line), err=True)
    typer.echo(printable(f"fedmef: {message}"), err=True)
    return code
