"""Sweeps: many settings of a scenario, on all cores of a machine or on a Dask cluster."""
