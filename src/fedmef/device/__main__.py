"""One device, without PyTorch: a broadcast in, an update out.

    python -m fedmef.device MESSAGE ANSWER --data FOLDER     a round: two files
    python -m fedmef.device --serve --data FOLDER            rounds through stdin and stdout, see process.py

Whatever brings the files here will do.

    --data WHERE      folder of arrays or of images, or module:function (see own_data.py)
    --number N        which device this is (default 0)
    --store FOLDER    keeps masks and the network between rounds (default: each message must bring all)
    --memory SIZE     let the process have no more than this, such as 64MB
    --method NAME     a method of your own that the server may ask for, module:Class
    --trust-server    take networks of any size
"""

import sys

from fedmef.device.hashes import bring_back_openssl, leave_out_openssl

leave_out_openssl()  # before the other imports

from collections.abc import Sequence  # noqa: E402
from getopt import GetoptError, gnu_getopt  # noqa: E402  (argparse takes 1.5 MB)
from pathlib import Path  # noqa: E402

from fedmef.device.choice import missing_kernels  # noqa: E402
from fedmef.device.device import Device  # noqa: E402
from fedmef.device.enforced import enforce_limit, parse_bytes  # noqa: E402
from fedmef.device.lost import NEEDS_ALL  # noqa: E402
from fedmef.device.measured import measured  # noqa: E402
from fedmef.device.own_data import open_own_data  # noqa: E402
from fedmef.device.process import native_device, private_streams, serve  # noqa: E402
from fedmef.device.resident import give_back_freed_memory  # noqa: E402
from fedmef.errors import FedmefError, NotHeldError, UserError  # noqa: E402
from fedmef.wire.container import MAXIMUM_BYTES  # noqa: E402
from fedmef.wire.files import read_bounded, write_atomically  # noqa: E402
from fedmef.wire.store import Store  # noqa: E402

MOST_DIGITS = 18  # of a device's number: it fits 64 bits
OPTIONS = ["data=", "number=", "store=", "memory=", "method=", "trust-server", "serve", "help"]


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 for an answer, 2 for wrong arguments, 75 when a message builds on what is lost, or 1."""
    try:
        return _work(arguments)
    except MemoryError:
        print("fedmef.device: out of memory", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fedmef.device: stopped", file=sys.stderr)
        return 130
    except NotHeldError as error:
        print(f"fedmef.device: {error}", file=sys.stderr)
        return NEEDS_ALL
    except (FedmefError, OSError) as error:
        print(f"fedmef.device: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, FedmefError) else 1


def _work(arguments: Sequence[str]) -> int:
    try:
        given, files = gnu_getopt(list(arguments), "h", OPTIONS)
    except GetoptError as error:
        raise UserError(f"{error}; --help lists what there is") from None
    options = {name.removeprefix("--"): value for name, value in given}
    if options.keys() & {"help", "-h"}:
        print(__doc__)
        return 0
    if len(files) != (0 if "serve" in options else 2):
        raise UserError("give MESSAGE and ANSWER, two files, or --serve")
    if "data" not in options:
        raise UserError("--data is missing: a folder of arrays or of images, or module:function")
    number = options.get("number", "0")
    if not (number.isdecimal() and len(number) <= MOST_DIGITS):
        raise UserError(f"--number {number}: must be a number from 0 on, of at most {MOST_DIGITS} digits")
    if files:
        _check_files(*map(Path, files))
    if missing := missing_kernels():
        raise FedmefError(missing)
    limit = parse_bytes(options["memory"]) if "memory" in options else None
    if ":" in options["data"] or "method" in options:
        bring_back_openssl()
    give_back_freed_memory()

    def open_device() -> Device:
        store = Path(options["store"]) if "store" in options else None
        device = native_device(
            open_own_data(options["data"], store or Path(options["data"])),
            number=int(number),
            store=None if store is None else _store(store, made_here="serve" not in options),
            methods=[value for name, value in given if name == "--method"],
            trusts_server="trust-server" in options,
        )
        if limit is not None:
            enforce_limit(limit)
        return device

    if "serve" in options:
        try:
            return serve(open_device, *private_streams())
        except BrokenPipeError:  # whoever sent the message is gone
            return 1
    device = open_device()
    with measured() as costs:
        answer = device.train(read_bounded(Path(files[0]), MAXIMUM_BYTES))
        write_atomically(Path(files[1]), answer)
    print(f"{costs.seconds:.2f} s, at most {costs.peak_memory / 1e6:.1f} MB resident", file=sys.stderr)
    return 0


def _check_files(message: Path, answer: Path) -> None:
    """Before training, which takes long."""
    if message.is_dir() or not message.exists():
        raise UserError(f"MESSAGE = '{message}': there is no such file")
    # A device such as /dev/null would be replaced by a file.
    if not answer.parent.is_dir() or (answer.exists() and not answer.is_file()):
        raise UserError(f"ANSWER = '{answer}': must be a file in a folder that exists")
    trial = answer.with_name(f".{answer.name}.trial")
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise UserError(
            f"ANSWER = '{answer}' cannot be written: {error.strerror}; name another file"
        ) from None


def _store(folder: Path, made_here: bool) -> Store:
    """Whoever serves has made the folder above it; if that is gone, it shall not come back."""
    try:
        if made_here:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--store {folder} cannot be made: {error.strerror}; name another folder") from None
    return Store(folder, parents=made_here)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
