"""What the pipeline strategy is made of: layout of ranks, stages, schedule, marks in the trace."""
