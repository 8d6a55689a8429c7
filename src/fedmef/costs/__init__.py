"""What a device needs: the paper's estimates next to measurements, limits, and the search for what fits."""
