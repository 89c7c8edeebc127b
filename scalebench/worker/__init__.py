"""The code that runs in each rank; the only place in the package that imports torch."""
