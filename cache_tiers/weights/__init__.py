"""Weights outside of the accelerator: in a node's memory, on its disk, and on the way between."""
