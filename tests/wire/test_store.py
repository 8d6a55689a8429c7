"""What a device holds between rounds: masks and networks, by the hash of their content."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedmef.errors import NotHeldError
from fedmef.sparsity.arrays import Bytes
from fedmef.sparsity.network import MAXIMUM_BYTES, Network
from fedmef.wire.container import encode
from fedmef.wire.store import VERSIONS_KEPT, Store, mask_version
from tests.sparsity.networks import dense_network, network_of_everything, normalized_network, sparse_network


def masks(number: int) -> dict[str, Bytes]:
    return {"conv": np.array([number, 0], dtype=np.uint8)}


def remember(store: Store, number: int) -> str:
    version = mask_version(masks(number))
    store.remember_masks(masks(number), version)
    return version


def test_masks_are_recalled_by_their_version(tmp_path: Path) -> None:
    store = Store(tmp_path / "held")
    version = remember(store, 1)
    recalled = store.recall_masks(version)
    assert recalled.keys() == {"conv"}
    assert np.array_equal(recalled["conv"], masks(1)["conv"])


def test_networks_are_recalled_by_their_digest(tmp_path: Path) -> None:
    store = Store(tmp_path / "held")
    for network in (sparse_network(), network_of_everything()):
        store.remember_network(network)
    assert store.recall_network(sparse_network().digest) == sparse_network()
    assert store.recall_network(network_of_everything().digest) == network_of_everything()


def test_a_store_is_a_folder_that_others_can_share(tmp_path: Path) -> None:
    version = remember(Store(tmp_path), 1)
    Store(tmp_path).remember_network(sparse_network())
    assert Store(tmp_path).recall_masks(version).keys() == {"conv"}
    assert Store(tmp_path).recall_network(sparse_network().digest) == sparse_network()


def test_the_version_is_the_content() -> None:
    assert mask_version(masks(1)) == mask_version(masks(1))
    assert mask_version(masks(1)) != mask_version(masks(2))
    assert mask_version(masks(1)) != mask_version({"other": masks(1)["conv"]})
    assert len(mask_version({})) == 32


def test_the_version_does_not_depend_on_the_order_of_layers() -> None:
    both = {"a": masks(1)["conv"], "b": masks(2)["conv"]}
    assert mask_version(both) == mask_version(dict(reversed(both.items())))


def test_names_and_masks_cannot_be_taken_for_one_another() -> None:
    one = {"a": np.array([66, 0], dtype=np.uint8)}
    other = {"aB": np.array([0], dtype=np.uint8)}
    assert mask_version(one) != mask_version(other)


def test_the_last_versions_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    versions = [remember(store, number) for number in range(5)]
    remember(store, 2)  # again: now the newest
    remember(store, 9)
    assert len(list(tmp_path.iterdir())) == VERSIONS_KEPT
    store.recall_masks(versions[2])
    with pytest.raises(NotHeldError, match=r"does not hold the masks .*all of it must be sent"):
        store.recall_masks(versions[3])


def test_masks_never_push_a_network_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.remember_network(sparse_network())
    for number in range(5):
        remember(store, number)
    assert store.recall_network(sparse_network().digest) == sparse_network()


def test_the_last_networks_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    networks = [dense_network(), sparse_network(), normalized_network(), network_of_everything()]
    for age, network in enumerate(networks):
        store.remember_network(network)
        os.utime(tmp_path / f"{network.digest}.json", (age, age))
    store.remember_network(normalized_network(7))
    held = {file.stem for file in tmp_path.glob("*.json")}
    assert held == {networks[2].digest, networks[3].digest, normalized_network(7).digest}
    with pytest.raises(NotHeldError, match="does not hold the network"):
        store.recall_network(networks[0].digest)


def test_an_empty_store_holds_nothing(tmp_path: Path) -> None:
    for store in (Store(tmp_path), Store(tmp_path / "nowhere")):
        with pytest.raises(NotHeldError):
            store.recall_masks("0" * 32)
        with pytest.raises(NotHeldError):
            store.recall_network("0" * 32)


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    version = remember(store, 1)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(NotHeldError):
        store.recall_masks(version)
    remember(store, 1)
    assert np.array_equal(store.recall_masks(version)["conv"], masks(1)["conv"])


def test_masks_under_a_wrong_name_are_as_good_as_none(tmp_path: Path) -> None:
    store, version = Store(tmp_path), mask_version(masks(1))
    (tmp_path / f"{version}.safetensors").write_bytes(encode(masks(2), {}))
    with pytest.raises(NotHeldError):
        store.recall_masks(version)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 200_000,
        b"\xff\xfe",
        b" " * (MAXIMUM_BYTES + 1),
        sparse_network().to_json()[:-1],
        dense_network().to_json(),  # a good one, but another
    ],
    ids=lambda content: ascii(content[:8]),
)
def test_a_damaged_network_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    store, network = Store(tmp_path), sparse_network()
    store.remember_network(network)
    (tmp_path / f"{network.digest}.json").write_bytes(content)
    with pytest.raises(NotHeldError):
        store.recall_network(network.digest)
    assert not list(tmp_path.iterdir())  # it is not taken for a good one next time
    store.remember_network(network)
    assert store.recall_network(network.digest) == network


def test_the_same_network_again_is_not_written_again(tmp_path: Path) -> None:
    store, network = Store(tmp_path), sparse_network()
    store.remember_network(network)
    (file,) = tmp_path.iterdir()
    inode = file.stat().st_ino
    store.remember_network(Network.from_json(network.to_json()))
    assert file.stat().st_ino == inode
