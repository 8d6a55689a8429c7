"""Density of each sparse layer at the end of training: which share of its weights is active."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from fedmef.report.appearance import BLUE, FONT_SIZE, new_figure, plain, plain_names
from fedmef.report.groups import Group, layer_densities

MOST_LAYERS = 200  # nobody could read a longer figure
LONGEST_NAME = 60
SHADES = LinearSegmentedColormap.from_list("white to blue", ["#ffffff", BLUE])


def draw_densities(groups: Sequence[Group], width: float) -> Figure | None:
    """A column for each group with sparse layers, a row for each layer; None when all are dense."""
    sparse = [(group, densities) for group in groups if (densities := layer_densities(group))]
    if not sparse:
        return None
    # The longest list first: it has the layers that others leave as they are, dense, in their right places.
    longest_first = sorted((densities for _, densities in sparse), key=len, reverse=True)
    layers = list(dict.fromkeys(name for densities in longest_first for name in densities))[:MOST_LAYERS]
    shares = np.array([[100 * densities.get(name, 1.0) for _, densities in sparse] for name in layers])
    names = plain_names(group for group, _ in sparse)
    crowded = sum(map(len, names)) * 0.09 > width - 1.5
    narrow = (width - 2) / len(sparse) < 0.35  # inches; too little for a number
    heading = 0.08 * max(map(len, names)) if crowded else 0.2
    figure = new_figure(width, 0.8 + heading + 0.3 * len(layers))
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap=SHADES, vmin=0, vmax=100, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        if not narrow:
            colour = "white" if share > 55 else "black"
            axes.text(column, row, f"{share:.3g}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(sparse)), names, fontsize=FONT_SIZE - 1)
    axes.tick_params(axis="x", top=True, bottom=False, labeltop=True, labelbottom=False)
    if narrow:
        figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02).ax.tick_params(labelsize=FONT_SIZE - 1)
        axes.tick_params(axis="x", labelrotation=90)
    elif crowded:
        axes.tick_params(axis="x", labelrotation=40)
        for label in axes.get_xticklabels():
            label.set(ha="left", va="bottom", rotation_mode="anchor")
    axes.set_yticks(
        range(len(layers)), [plain(name[-LONGEST_NAME:]) for name in layers], fontsize=FONT_SIZE - 1
    )
    axes.set_ylabel("layer, from input to output", fontsize=FONT_SIZE)
    axes.set_xlabel("active weights, % of the layer", fontsize=FONT_SIZE)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure
