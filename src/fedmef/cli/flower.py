"""`fedmef flower`: an app to begin with, and the gate of a fleet's server."""

import re
import ssl
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedmef.cli.plain_help import SETTINGS, NamedCommands, PlainHelp
from fedmef.errors import UserError

app = typer.Typer(
    help="Apps for Flower: the same methods on a fleet of real machines.", cls=NamedCommands, **SETTINGS
)

# Files of the template that are not modules, and where they go.
TEXTS = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "environment.sh.txt": "environment.sh",
    "gitignore.txt": ".gitignore",
    "config.toml.txt": ".flwr/config.toml",
}


@app.command(cls=PlainHelp)
def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the app.")],
) -> None:
    """Write a Flower app: put your network into its model.py and your data into its data.py."""
    package = write_app(directory)
    typer.echo(
        f"{directory}: your network goes into {package}/model.py, your data into {package}/data.py; "
        "README.md says how to run it"
    )


@app.command(cls=PlainHelp)
def gate(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where devices reach this machine.")],
    authority: Annotated[
        Path, typer.Option("--ssl-ca-certfile", metavar="FILE", help="The authority's certificate.")
    ],
    certificate: Annotated[
        Path, typer.Option("--ssl-certfile", metavar="FILE", help="The server's certificate.")
    ],
    key: Annotated[Path, typer.Option("--ssl-keyfile", metavar="FILE", help="Its key.")],
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535)] = 8443,
    superlink: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="The SuperLink, at this machine's loopback.")
    ] = "127.0.0.1:8444",
) -> None:
    """Let devices reach a SuperLink, and nobody reach more of it than devices need."""
    for option, file in (
        ("--ssl-ca-certfile", authority),
        ("--ssl-certfile", certificate),
        ("--ssl-keyfile", key),
    ):
        if not file.is_file():
            raise UserError(f"{option}: there is no file {file}")
    try:
        from fedmef.federation.engines.flower.gate import gate_app, serve  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; pip install 'fedmef[flower]'") from None
    try:
        opened = gate_app(superlink, authority)
    except ssl.SSLError as error:
        raise UserError(f"--ssl-ca-certfile {authority}: it must be a certificate in PEM ({error})") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise UserError(
            f"--ssl-certfile {certificate}, --ssl-keyfile {key}: give a certificate and its key in PEM "
            f"({error})"
        ) from None
    serve(host, port, opened, certificate, key)


def write_app(directory: Path) -> str:
    """Write the app into a new or empty directory; returns the name of its package."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is there already; choose a new or an empty directory")
    name = directory.absolute().name
    package = re.sub(r"\W", "_", name, flags=re.ASCII).lower()
    if not package.isidentifier():
        raise UserError(f"DIR = '{name}': the app has its name, which must begin with a letter")
    template = files("fedmef.federation.engines.flower.template")
    for source, target in TEXTS.items():
        text = template.joinpath(source).read_text(encoding="utf-8")
        text = text.replace("NAME", package.replace("_", "-")).replace("PACKAGE", package)
        text = text.replace("FOLDER", str(directory.absolute()))
        _write(directory / target, text)
    for module in template.joinpath("app").iterdir():
        if module.name.endswith(".py"):
            _write(directory / package / module.name, module.read_text(encoding="utf-8"))
    return package


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another directory") from None
