"""What fedmef raises: a user's mistake, or a failure of the work itself."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# What the extra `train` brings, by its import names. A device needs none of it.
TRAIN = frozenset({"torch", "typer", "click", "rich", "pooch", "tqdm", "requests", "PIL", "matplotlib"})


def printable(text: str) -> str:
    """Text from outside in one line that a terminal takes for text: control characters become escapes."""
    if text.isprintable():
        return text
    shown = (letter if letter.isprintable() or letter == "\xa0" else repr(letter)[1:-1] for letter in text)
    return "".join(shown)


class FedmefError(Exception):
    """Something failed. The command line prints its text as one line and exits with 1.

    What it names (paths, settings, a device's words) may come from a stranger: its text is printable.
    """

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class UserError(FedmefError, ValueError):
    """A mistake in what was asked: names the field, the value and the remedy. Exits with 2."""

    exit_code = 2


class SparsityError(UserError):
    """A sparsity that leaves a layer without the weights that it needs."""


class ConversionError(UserError):
    """A module that `sparsify` cannot convert, and could leave as it is."""


class NotInstalledError(UserError, ImportError):
    """A package is missing that the light installation leaves out; names the extra that brings it."""


class FedmefWarning(UserWarning):
    """Something is not as it should be, but the work continues."""

    def __str__(self) -> str:
        return printable(super().__str__())


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or another signal to stop, in the middle of a run: says how to resume it."""

    def __init__(self, message: str, signal_number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class StopRun(Exception):  # noqa: N818  (it is no error)
    """Raised by a callback, with the reason: the run ends after this round."""


class NetworkError(FedmefError):
    """A network as data that is not one, or arrays that do not fit it."""


class OutOfMemoryError(NetworkError, MemoryError):
    """A network that does not fit into the memory that there is."""


class MessageError(FedmefError):
    """Bytes that are not a message of ours, or not one for this receiver."""


class NotHeldError(FedmefError):
    """A message builds on masks or a network that this device does not hold: all must be sent again."""


class ValueRangeError(FedmefError):
    """A value is too large for the type that values have on the wire."""


class NoAnswerError(FedmefError):
    """A device gives no answer, for a reason that is no bug: it was late, or told to fail."""


class RejectedError(FedmefError):
    """An update that must not touch the model; it is left out, and the others are used."""


@contextmanager
def naming_the_extra() -> Iterator[None]:
    """Around what imports something that only the extra `train` brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in TRAIN:
            raise
        raise NotInstalledError(
            f"{package} is not installed, and only a device can do without: pip install 'fedmef[train]'"
        ) from error


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody meant who wrote this one; capitals do not count."""
    from difflib import get_close_matches  # noqa: PLC0415  (half a megabyte, for errors only)

    names = sorted(known)
    folded = {other.casefold(): other for other in names}
    near = get_close_matches(name, names, n=1) or get_close_matches(name.casefold(), folded, n=1)
    return folded.get(near[0], near[0]) if near else None


def unknown_name(kind: str, name: str, known: Iterable[str], more: str = "") -> UserError:
    """The error for a name that is not in a table, with the nearest one, or all and what else may help."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean '{near}'?" if near else f"known: {', '.join(names)}{more and f'; {more}'}"
    return UserError(f"unknown {kind} '{name}': {hint}")
