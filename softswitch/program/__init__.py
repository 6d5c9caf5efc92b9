"""Reads BMv2 JSON into plain, checked data."""
