"""Congestion control: a registry behind one small interface."""

from dlcp.transport.congestion.algorithms import Dctcp, Delay, Fixed
from dlcp.transport.congestion.base import CongestionControl, FlowParameters, Sample, create, names, register

__all__ = ["CongestionControl", "Dctcp", "Delay", "Fixed", "FlowParameters", "Sample", "create", "names", "register"]
