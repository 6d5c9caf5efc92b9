"""The lab: a topology as an emulated network on this machine; see :class:`testbed.lab.network.Lab`."""
