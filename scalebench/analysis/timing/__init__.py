"""The time of a step: which steps count, their mean, their parts, their noise."""
