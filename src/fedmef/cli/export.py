"""`fedmef export`: a finished run's model as a file for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from fedmef.cli.common import AsJson, print_facts
from fedmef.cli.plain_help import command_app
from fedmef.costs.units import human_bytes
from fedmef.errors import UserError
from fedmef.exports.files import SUFFIXES, Format, exported
from fedmef.runs.directory import Run
from fedmef.runs.place import check_file
from fedmef.wire.files import write_atomically


def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's directory.")],
    kind: Annotated[Format, typer.Option("--format", help="What kind of file.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to (default: RUN/export.onnx and so on).")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a finished run's model as an ONNX, TorchScript or safetensors file.

    It needs no data, and no code of its model.
    """
    opened = Run.open(directory)
    file = directory / f"export{SUFFIXES[kind]}" if out is None else out
    check_file(file, "--out")
    if file.exists() and not overwrite:
        raise UserError(f"{file} is there already: --overwrite replaces it")
    content = exported(opened.model(), kind)
    try:
        write_atomically(file, content)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}; choose another --out") from None
    network = opened.network
    facts = {
        "file": str(file),
        "size": len(content) if as_json else human_bytes(len(content)),
        "images": f"uint8 [n, {', '.join(map(str, network.input.shape))}]",
        "answer": f"logits [n, {network.classes}]",
    }
    if kind == "safetensors":
        facts["images"] = "normalised as (x / 255 - mean) / std; see the file's metadata"
    print_facts(facts, as_json)


app = command_app(export)
