"""What devices minimise: cross-entropy, or a function of the user's own."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmef.errors import UserError
from fedmef.experiment.names import load_object
from fedmef.wire.job import CROSS_ENTROPY

Loss = Callable[[Tensor, Tensor], Tensor]  # of logits [n, classes] and labels [n]: the mean over the batch

LONGEST_REASON = 200
REMEDY = "it must give the mean over the batch as a tensor without dimensions, computed from the logits"


def find_loss(name: str) -> Loss:
    """The loss of this name; what a user's own gives is checked at every step."""
    if name == CROSS_ENTROPY:
        return F.cross_entropy
    if ":" not in name:
        raise UserError(f"unknown loss '{name}': it is {CROSS_ENTROPY}, or module:function of your own")
    own = load_object("loss", name)
    if not callable(own):
        raise UserError(f"loss '{name}' is {type(own).__name__}; name a function of (logits, labels)")

    def checked(logits: Tensor, labels: Tensor) -> Tensor:
        value = own(logits, labels)
        if not isinstance(value, Tensor):
            raise UserError(f"loss '{name}' gave {type(value).__name__}: {REMEDY}")
        if value.dim() or not value.requires_grad:
            what = f"a tensor of shape {list(value.shape)}" if value.dim() else "a tensor without gradient"
            raise UserError(f"loss '{name}' gave {what}: {REMEDY}")
        return value

    return checked


def try_loss(name: str, classes: int, accelerator: str = "cpu") -> None:
    """Raise `UserError` when a user's own loss is none, before anything is trained with it."""
    loss = find_loss(name)
    logits = torch.linspace(-1, 1, 2 * classes, device=accelerator).reshape(2, classes).requires_grad_()
    labels = torch.tensor([0, classes - 1], device=accelerator)
    try:
        with torch.random.fork_rng(devices=[]):
            value = loss(logits, labels)
            value.backward()  # type: ignore[no-untyped-call]
    except UserError:
        raise
    except Exception as error:  # code of the user's own may raise anything
        raise UserError(
            f"loss '{name}' raised {type(error).__name__} for logits of shape [2, {classes}] and labels of "
            f"shape [2]: {str(error)[:LONGEST_REASON]}; correct it"
        ) from error
    if logits.grad is None:
        raise UserError(f"loss '{name}' gave a tensor that the logits have no part in: {REMEDY}")
    if not (value.isfinite() and logits.grad.isfinite().all()):
        raise UserError(
            f"loss '{name}' gave {value.item():g} for logits from -1 to 1, or a gradient that is not finite; "
            "correct it"
        )
