"""PyTorch's example of FSDP2: each layer is sharded, batches are made up, without a loader."""

import sys
from itertools import count

import torch
import torch.distributed as dist
from own_clock import own_clock
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

FOLDER, VOCAB, BATCH, LENGTH = sys.argv[1], 512, 8, 32
dist.init_process_group("gloo")
torch.manual_seed(0)


class Transformer(nn.Module):
    """Some layers between an embedding and the words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        options = {"dim_feedforward": 256, "dropout": 0.0, "batch_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, **options) for _ in range(4))
        self.head = nn.Linear(64, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each place."""
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


model = Transformer()
precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mp_policy=precision)
fully_shard(model, mp_policy=precision)
for before, after in zip(model.layers, model.layers[1:], strict=False):
    before.set_modules_to_forward_prefetch([after])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())  # the example itself gives all ranks the same batches
with own_clock() as mark:
    for number in count(1):
        model.unshard()
        tokens = torch.randint(VOCAB, (BATCH, LENGTH))
        model(tokens).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        mark()
        optimizer.step()
        optimizer.zero_grad()
        if number % 200 == 0:
            state = get_model_state_dict(model)
            if dist.get_rank() == 0:
                torch.save(list(state), f"{FOLDER}/model.pt")
