"""`python -m fedmef.device` as it is, which then prints its most resident bytes and each step's seconds."""

import sys

from fedmef.costs.step_times import note_steps
from fedmef.device.__main__ import main
from fedmef.device.native_backend import NativeBackend
from fedmef.device.resident import peak_resident

if __name__ == "__main__":
    noted = note_steps(NativeBackend)
    code = main(sys.argv[1:])
    if code == 0:
        print(peak_resident(), *noted)
    sys.exit(code)
