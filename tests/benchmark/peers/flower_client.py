"""The ClientApp of flower.py. A module of its own, so that Ray's actors import it once instead of unpickling it."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from workloads import WORKLOADS

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of SGD on the client's tensors; slices of a permutation, which cost less than a DataLoader."""
    workload = WORKLOADS[str(message.content["config"]["workload"])]
    model = workload.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=float(message.content["config"]["lr"]))
    x, y = workload.client(int(context.node_config["partition-id"]))
    for rows in torch.randperm(len(x)).split(workload.batch):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
