"""Experiments with the layers: networks, data, training, measurements of runs, and reports."""
