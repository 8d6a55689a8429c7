"""The command `fedmef`, and `python -m fedmef`: the command line, or what to install for one."""

import signal
import sys


def command() -> None:
    """A device's installation has no command line: one line says so.

    Ctrl-C while the command line is being imported ends the process at once, without a traceback.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedmef.errors import NotInstalledError, naming_the_extra  # noqa: PLC0415  (see above)

    try:
        with naming_the_extra():
            from fedmef.cli import app  # noqa: PLC0415  (it imports typer)
    except NotInstalledError as error:
        print(f"fedmef: {error}. A device is python -m fedmef.device.", file=sys.stderr)
        sys.exit(error.exit_code)
    app.command(handler)


if __name__ == "__main__":
    command()
