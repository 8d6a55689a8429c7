"""What is wrong with a command line, in a sentence."""

from typing import Any

from fedmef.errors import nearest

# What other programs call it.
SYNONYMS = {
    "--algorithm": "--method",
    "--arch": "--model",
    "--bs": "--batch-size",
    "--clients": "--devices",
    "--clients-per-round": "--devices-per-round",
    "--cuda": "--accelerator",
    "--data": "--dataset",
    "--gpu": "--accelerator",
    "--lr": "--learning-rate",
    "--network": "--model",
    "--num-clients": "--devices",
    "--strategy": "--method",
    "-o": "--out",
}


def usage_message(error: Any) -> str:
    """An option that is not there comes with the one that was meant: click would name up to three."""
    if not hasattr(error, "possibilities") or not hasattr(error, "option_name") or error.ctx is None:
        message: str = error.format_message()
        return message
    name: str = error.option_name
    parameters = error.ctx.command.get_params(error.ctx)
    known = [option for one in parameters for option in (*one.opts, *one.secondary_opts) if option[0] == "-"]
    meant = SYNONYMS.get(name)
    near = meant if meant in known else nearest(name, known)
    return f"there is no option '{name}'{(near and f': did you mean {near}?') or ''}"
