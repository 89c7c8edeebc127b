"""A synchronous parameter server that steps chunk by chunk, as soon as all workers sent one."""

import threading
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from scalebench.worker.optimizers import set_rate
from scalebench.worker.strategies.asynchronous.chunk_link import GOODBYE, ChunkLink, Outbox
from scalebench.worker.strategies.asynchronous.chunks import Chunk


class ChunkServer:
    """Chunks of the parameters, an optimizer for each, and the gradients that are there already.

    Args:
        values: All parameters, shape [Ψ]; the server changes its chunks in place.
        chunks: Those that it serves.
        num_workers: N.
        make_optimizer: Parameters → their optimizer.
        shapes: Of each parameter of the module, for an optimizer that needs whole layers: every
            chunk is one then. Empty: a chunk is a vector to the optimizer.
    """

    def __init__(
        self,
        values: torch.Tensor,
        chunks: Sequence[Chunk],
        num_workers: int,
        make_optimizer: Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer],
        shapes: Sequence[torch.Size] = (),
    ) -> None:
        self.num_workers = num_workers
        self._parameters = {
            c.number: torch.nn.Parameter(
                values[c.part].view(shapes[c.parameter]) if shapes else values[c.part]
            )
            for c in chunks
        }
        self._optimizers = {c: make_optimizer([one]) for c, one in self._parameters.items()}
        self._sums = {c: torch.zeros_like(one.data) for c, one in self._parameters.items()}
        self._counts = dict.fromkeys(self._parameters, 0)

    def set_rate(self, chunk: int, rate: float) -> None:
        """Have the next step of a chunk use a learning rate."""
        set_rate(self._optimizers[chunk], rate)

    def push(self, chunk: int, gradient: torch.Tensor) -> bool:
        """Add a worker's gradient of a chunk; return whether it was the last, and made a step.

        The step is by the mean of all workers' gradients. A worker pushes a chunk again only after
        that.
        """
        self._sums[chunk] += gradient.view_as(self._sums[chunk])
        self._counts[chunk] += 1
        if self._counts[chunk] < self.num_workers:
            return False
        self._parameters[chunk].grad = self._sums[chunk] / self.num_workers
        self._optimizers[chunk].step()
        self._sums[chunk].zero_()
        self._counts[chunk] = 0
        return True


class ChunkServing:
    """A chunk server at work: a thread listens to each worker, an outbox answers all of them.

    Args:
        server: What it serves.
        values: The vector that its chunks are pieces of, shape [Ψ].
        chunks: All chunks, also those of other servers.
        needs: How soon a forward pass needs each parameter; may change.
        by_need: Whether what is needed first is answered first.
        rank: Of this process, which is a worker, too.
        connections: Other rank → the group of it and this one.
        on_answer: Is called with a chunk whose new values this rank may use.
        on_failure: Is called with an error of a thread.
    """

    def __init__(
        self,
        server: ChunkServer,
        values: torch.Tensor,
        chunks: Sequence[Chunk],
        needs: Sequence[int],
        by_need: bool,
        rank: int,
        connections: "Mapping[int, dist.ProcessGroup]",
        on_answer: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.server, self._chunks, self._needs = server, chunks, needs
        self._on_answer, self._on_failure = on_answer, on_failure
        self._one_at_a_time = threading.Lock()
        links = [
            ChunkLink(worker, group, other_serves=False) for worker, group in connections.items()
        ]
        parts = [chunk.part for chunk in chunks]
        self.outbox = Outbox(by_need, lambda _: links, values, parts, on_failure)
        own = [chunk for chunk in chunks if chunk.server == rank]
        self._threads = [
            threading.Thread(target=self._serve, args=(link, own, values.dtype), daemon=True)
            for link in links
        ]
        for thread in self._threads:
            thread.start()

    def push_own(self, chunk: int, gradient: torch.Tensor, rate: float | None) -> None:
        """Push this rank's gradient of a chunk, shape [elements].

        Args:
            chunk: Its number.
            gradient: Shape [elements].
            rate: Learning rate of the step that it is for; None: it stays as it is.
        """
        if rate is not None:
            self.server.set_rate(chunk, rate)
        self._push(chunk, gradient)

    def close(self) -> None:
        """Wait until all workers have said goodbye."""
        for thread in self._threads:
            thread.join()
        self.outbox.close()

    def _serve(self, link: ChunkLink, own: Sequence[Chunk], dtype: torch.dtype) -> None:
        """Listen to a worker until it says goodbye; say it, too."""
        gradients = {c.number: torch.empty(c.stop - c.start, dtype=dtype) for c in own}
        try:
            for chunk, values in gradients.items():
                link.expect(chunk, values)
            while (chunk := link.receive()) != GOODBYE:
                self._push(chunk, gradients[chunk])
                link.expect(chunk, gradients[chunk])
            link.say_goodbye()
        except RuntimeError as error:
            self._on_failure(
                RuntimeError(
                    f"the parameter server lost worker {link.other}, and a step needs the "
                    f"gradients of {self.server.num_workers} workers ({error})"
                )
            )

    def _push(self, chunk: int, gradient: torch.Tensor) -> None:
        with self._one_at_a_time:
            stepped = self.server.push(chunk, gradient)
        if stepped:
            self.outbox.put(chunk, self._needs[self._chunks[chunk].parameter])
            self._on_answer(chunk)
