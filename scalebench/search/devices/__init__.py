"""Devices that are not here: operators and links from facts, and from rows that were measured."""
