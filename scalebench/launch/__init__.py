"""Launchers: how the ranks of a cell come into being. One module for each way."""
