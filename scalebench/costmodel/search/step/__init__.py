"""The step of a configuration, predicted part by part.

The parts are those of the cost models next door: passes and bubble of a pipeline
(`pipelines.orders`), what tensor, context and expert groups send (`tensor_layers`,
`context_layers`, `expert_layers`), gradients in buckets behind the backward pass (`replay`). What
a group sends inside a pass, its ranks wait for; only ring attention and gathers hide behind
computation. `parts` puts them together.
"""
