"""The fields of a summary's row, one module for each group of them."""
