"""PyTorch Geometric's classification of graphs under DDP: batches of graphs of different sizes."""

import torch
from own_clock import own_clock
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, MLP, global_add_pool

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)


def graph(nodes: int) -> Data:
    """Return a random graph of two classes."""
    edges = torch.randint(nodes, (2, 4 * nodes))
    return Data(x=torch.randn(nodes, 16), edge_index=edges, y=torch.randint(2, (1,)))


class Net(torch.nn.Module):
    """GIN, pooled over each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = GIN(16, 64, 3)
        self.head = MLP([64, 64, 2], norm=None)

    def forward(self, batch):
        """Return the logits of each graph."""
        nodes = self.gnn(batch.x, batch.edge_index)
        return self.head(global_add_pool(nodes, batch.batch, batch.num_graphs))


graphs = [graph(int(nodes)) for nodes in torch.randint(10, 60, (512,))]
loader = DataLoader(graphs, 8, sampler=DistributedSampler(graphs), drop_last=True)
model = DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with own_clock() as mark:
    for epoch in range(10_000):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), batch.y).backward()
            mark()
            optimizer.step()
