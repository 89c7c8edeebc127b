"""The nested fields of a summary's row: what `scalebench.records.summary.Row` is made of."""
