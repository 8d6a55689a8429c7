"""Data sets as NumPy arrays, and their partition over devices."""

from fedmef.data.convert import from_arrays, from_image_folder, from_samples
from fedmef.data.dataset import Dataset, Split
from fedmef.data.load import DATASETS, default_data_dir, load_dataset
from fedmef.data.partition import dirichlet_partition, iid_partition, natural_partition
from fedmef.data.synthetic import SyntheticImages

__all__ = [
    "DATASETS",
    "Dataset",
    "Split",
    "SyntheticImages",
    "default_data_dir",
    "dirichlet_partition",
    "from_arrays",
    "from_image_folder",
    "from_samples",
    "iid_partition",
    "load_dataset",
    "natural_partition",
]
