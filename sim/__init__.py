"""Packet-level simulation of training traffic: what a network and a transport do to a job, before anybody touches a switch."""
