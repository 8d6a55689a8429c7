"""A run's directory may be anybody's: code that it names runs here only if somebody says so."""

from collections.abc import Iterable

from fedmef.errors import UserError
from fedmef.runs.directory import CONFIG, Run


def check_consent(directory: Run, fields: Iterable[str], allow_code: bool) -> None:
    """Raise `UserError` when a directory's own words would decide what code is run here."""
    if allow_code or not (code := directory.code(sorted(fields))):
        return
    named = ", ".join(f"{field} = '{name}'" for field, name in code.items())
    raise UserError(
        f"{directory.path / CONFIG} names code that this would run: {named}; if you trust it, allow it with "
        "--allow-code (allow_code=True)"
    )
