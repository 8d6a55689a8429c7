"""Injected faults as a setting: which devices fail or lie in which round, and how; for tests.

Which device fails when derives from the seed alone, so every engine loses the same updates.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from fedmef.errors import UserError
from fedmef.experiment.randomness import generator_for
from fedmef.wire.files import read_bounded

# A liar's answer is well formed: weights of 0 with a thousand times its samples, of 1e30, of 3.4e38; growth
# gradients of 1e30; its first answer again and again; the name of another device.
LIES = ("zeros", "huge", "largest", "forge", "replay", "impostor")
KINDS = ("drop", "slow", "corrupt", "kill", *LIES)
FORM = (
    "write KIND=SHARE, or KIND@ROUND:DEVICE for one device in one round, with commas between them; "
    f"kinds are {', '.join(KINDS)}"
)
MAXIMUM_PLAN_BYTES = 2**19  # it goes into the run's configuration


@dataclass(frozen=True)
class Faults:
    """Which devices fail when.

    Attributes:
        shares: how often a device fails in each way; the seed decides when.
        planned: the fault of a device in a round.
    """

    shares: dict[str, float]
    planned: dict[tuple[int, int], str]

    @classmethod
    def parse(cls, text: str) -> "Faults":
        """`drop=0.3,kill@3:7`; raises `ValueError` for anything else."""
        shares: dict[str, float] = {}
        planned: dict[tuple[int, int], str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            kind, sign, value = item.partition("=" if "=" in item else "@")
            if kind not in KINDS or not sign:
                raise ValueError(f"'{item}' is no fault: {FORM}")
            try:
                if sign == "=":
                    shares[kind] = float(value)
                else:
                    round_number, device = map(int, value.split(":"))
                    planned[round_number, device] = kind
            except ValueError:
                raise ValueError(f"'{item}' is no fault: {FORM}") from None
        if not all(0 <= share <= 1 for share in shares.values()) or sum(shares.values()) > 1:
            raise ValueError(f"shares are between 0 and 1, and their sum is at most 1, not {shares}")
        return cls(shares, planned)

    def of(self, seed: int, round_number: int, attempt: int, device: int) -> str | None:
        """How a device fails, if it does."""
        if (round_number, device) in self.planned:
            return self.planned[round_number, device]
        if not self.shares:
            return None
        drawn = generator_for(seed, "faults", round_number, attempt, device).random()
        for kind, share in self.shares.items():
            drawn -= share
            if drawn < 0:
                return kind
        return None


def read_fault_plan(file: Path) -> str:
    """A TOML file of `[[fault]]` tables with `round`, `device` and `fault`, in the form of `--faults`."""
    try:
        entries = tomllib.loads(read_bounded(file, MAXIMUM_PLAN_BYTES).decode())["fault"]
        faults = ",".join(f"{entry['fault']}@{entry['round']}:{entry['device']}" for entry in entries)
        Faults.parse(faults)
    except OSError as error:
        raise UserError(
            f"--fault-plan {file}: {error.strerror}; name a TOML file of [[fault]] tables"
        ) from None
    except (UserError, ValueError, KeyError, TypeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"--fault-plan {file}: {reason}; write [[fault]] tables with round, device and fault"
        ) from None
    return faults
