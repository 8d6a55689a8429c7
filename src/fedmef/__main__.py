"""The command `fedmef`, and `python -m fedmef`: the command line, or what to install for one."""

import sys

from fedmef.errors import NotInstalledError, naming_the_extra


def command() -> None:
    """A device's installation has no command line: one line says so."""
    try:
        with naming_the_extra():
            from fedmef.cli import app  # noqa: PLC0415  (it imports typer)
    except NotInstalledError as error:
        print(f"fedmef: {error}. A device is python -m fedmef.device.", file=sys.stderr)
        sys.exit(error.exit_code)
    app.command()


if __name__ == "__main__":
    command()
