"""Which kernels are tested: the installed ones, those of the directory FEDMEF_KERNELS, or emulated ones."""

import os

import fedmef.native

if directory := os.environ.get("FEDMEF_KERNELS"):
    fedmef.native.__path__.insert(0, directory)

if os.environ.get("FEDMEF_EMULATOR"):
    from fedmef.device import native_backend
    from fedmef.native import _kernels
    from tests.native import emulated

    native_backend.NativeBackend = emulated.EmulatedBackend  # type: ignore[assignment,misc]
    _kernels.available = lambda: emulated.ask("available")
