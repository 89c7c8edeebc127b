"""The tables of the terminal and of the page."""
