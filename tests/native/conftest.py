"""Which build of the extension is tested: the installed one, or that of the directory FEDMEF_KERNELS."""

import os

import fedmef.native

if directory := os.environ.get("FEDMEF_KERNELS"):
    fedmef.native.__path__.insert(0, directory)
