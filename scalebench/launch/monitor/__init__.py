"""Watches the node while ranks train; runs in the launcher's process, off the ranks' threads."""
