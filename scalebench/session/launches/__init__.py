"""Launching cells one after the other, by turns, and in further rounds."""
