"""Where in somebody's own code something happens: the module, the file and the line, for a message."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch
from torch import nn

_NOT_THEIRS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))


def where(error: BaseException, model: nn.Module, stack: Sequence[str]) -> str:
    """The module and the line of an error in a user's code, and what it says."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"in {module_and_line(model, stack[-1] if stack else '', _line_of(error))}: {text[:300]}"


def module_and_line(model: nn.Module, name: str, line: str) -> str:
    """`'layer1.0' (Block), net.py line 12`; the model itself has no name."""
    try:
        kind = type(model.get_submodule(name)).__name__
    except AttributeError:
        kind = type(model).__name__
    found = f"'{name}' ({kind})" if name else kind
    return f"{found}, {line}" if line else found


def line_here(outermost: FrameType) -> str:
    """`net.py line 12`: the innermost line of somebody's own code that runs now, within a call; or ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not outermost:
        if not frame.f_code.co_filename.startswith(_NOT_THEIRS):
            return _shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def _line_of(error: BaseException) -> str:
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_THEIRS):
            found = _shown(file, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _shown(file: str, line: int) -> str:
    return f"{Path(file).name} line {line}"
