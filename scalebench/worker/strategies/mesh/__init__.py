"""Ranks that divide a model or its samples along the dimensions of one mesh."""
