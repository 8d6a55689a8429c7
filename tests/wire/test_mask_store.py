from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedmef.wire import MaskMemory, MaskMissingError, mask_version


def masks(number: int) -> dict[str, Tensor]:
    return {"conv": torch.tensor([number, 0], dtype=torch.uint8)}


def test_masks_are_recalled_by_their_version(tmp_path: Path) -> None:
    memory = MaskMemory(tmp_path / "masks")
    memory.remember(masks(1), mask_version(masks(1)))
    assert torch.equal(memory.recall(mask_version(masks(1)))["conv"], masks(1)["conv"])


def test_the_version_is_the_content() -> None:
    assert mask_version(masks(1)) == mask_version(masks(1))
    assert mask_version(masks(1)) != mask_version(masks(2))
    assert mask_version(masks(1)) != mask_version({"other": masks(1)["conv"]})
    assert len(mask_version({})) == 32


def test_the_last_versions_are_kept(tmp_path: Path) -> None:
    memory = MaskMemory(tmp_path)
    versions = [mask_version(masks(number)) for number in range(5)]
    for number, version in enumerate(versions):
        memory.remember(masks(number), version)
    memory.remember(masks(2), versions[2])  # again: now the newest
    memory.remember(masks(9), mask_version(masks(9)))
    assert len(list(tmp_path.iterdir())) == 3
    memory.recall(versions[2])
    with pytest.raises(MaskMissingError, match="sent with all masks"):
        memory.recall(versions[3])


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    memory, version = MaskMemory(tmp_path), mask_version(masks(1))
    memory.remember(masks(1), version)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(MaskMissingError):
        memory.recall(version)
    memory.remember(masks(1), version)
    assert torch.equal(memory.recall(version)["conv"], masks(1)["conv"])
