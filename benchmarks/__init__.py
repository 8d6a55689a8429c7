"""Side-by-side ratios. A package in name too, because opacus installs another that is called benchmarks."""
