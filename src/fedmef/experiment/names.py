"""A user's own dataset, model or method, named in a configuration as "package.module:name"."""

import gc
import importlib
import sys
from pathlib import Path
from typing import Any

from fedmef.errors import UserError, naming_the_extra, nearest


def load_object(kind: str, path: str) -> object:
    """The object that `path` names. `kind` ("dataset", "model", ...) only serves the error messages."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise UserError(f"{kind} '{path}' is not of the form 'package.module:name'")
    if module_name.endswith(".py") or "/" in module_name:
        raise UserError(f"{kind} '{path}' names a file: {_module_instead(Path(module_name), name)}")

    # An installed command, unlike `python -m`, does not look for modules in the current folder.
    # At the end of the path, so that nothing installed is shadowed.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)

    try:
        value: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{kind} '{path}': there is no module '{error.name}'; install it, "
            "or run from the folder that holds it"
        ) from error
    except Exception as error:
        raise UserError(
            f"{kind} '{path}': importing '{module_name}' raised {type(error).__name__}: {error}"
        ) from error

    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            near = nearest(part, [name for name in dir(value) if not name.startswith("_")])
            hint = f"; did you mean '{near}'?" if near else ""
            if module_name == "__main__":
                hint = "; put it in a file, or use engine='inline' without device_memory"
            raise UserError(f"{kind} '{path}': module '{module_name}' has no '{name}'{hint}") from error
    return value


def _module_instead(file: Path, name: str) -> str:
    """How to write `folder/file.py:name`. Worker processes import it too, by its module's name."""
    folder, module = file.parent, file.name.removesuffix(".py")
    if folder.is_absolute() or not all(part.isidentifier() for part in folder.parts):
        return f"write its module's name, '{module}:{name}', and run from the folder {folder}"
    return f"write its module's name, '{'.'.join((*folder.parts, module))}:{name}'"


def own_name(name: str) -> str:
    """What may help with an unknown name: how to write one of the user's own."""
    module, dot, last = name.rpartition(".")
    own = f"{module}:{last}" if dot and last != "py" and module.replace(".", "").isidentifier() else ""
    return f"one of your own is named {own or 'module:name'}"


def load_part(module: str, name: str) -> Any:
    """Something that needs PyTorch, imported when it is needed: the core itself never loads it."""
    collecting = gc.isenabled()
    gc.disable()  # a large import makes no garbage; searching for it takes a sixth of the time
    try:
        with naming_the_extra():
            return getattr(importlib.import_module(module), name)
    finally:
        if collecting:
            gc.enable()
