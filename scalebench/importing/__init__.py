"""Reading the logs of jobs that ran elsewhere: from lines to the steps of a job.

`formats.toml` says how each framework prints its steps; `templates` takes off what stands in front
of them, `reader` makes records of them, `steps` makes the times of steps of records, `job` has one
log's N, batch and model. `scalebench.analysis.imported` makes rows of several logs.
"""
