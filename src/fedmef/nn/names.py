"""Names of modules as a user gives them: exact, or as patterns."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from fedmef.errors import UserError, nearest


class Names:
    """Names or patterns of modules; each must match something, so that a typing error is noticed.

    A parameter of a block's own may be named too: it stays as it is anyway, and the block's layers do not.
    """

    def __init__(
        self, patterns: Iterable[str], model: nn.Module, argument: str, parameters: bool = False
    ) -> None:
        self.patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        names = [name for name, _ in model.named_modules()]
        if parameters:
            names += [name for name, _ in model.named_parameters()]
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                near = nearest(pattern, filter(None, names)) or next(filter(None, names), "")
                hint = f"; names are such as '{near}'" if near else ""
                raise UserError(f"{argument}: no module of {type(model).__name__} matches '{pattern}'{hint}")

    def match(self, name: str) -> bool:
        """Whether a pattern names this module or one that contains it."""
        parts = name.split(".")
        prefixes = [".".join(parts[: end + 1]) for end in range(len(parts))]
        return any(fnmatchcase(prefix, pattern) for prefix in prefixes for pattern in self.patterns)
