"""CUDA graphs without a GPU: a recording runs its pass again, on the recording's own inputs."""

import torch

from hydragnn_hpo.training import cuda_graphs, training_parts


def record_by_running(work, device):
    """Run the pass as often as a recording does, and again at every replay."""
    for _ in range(cuda_graphs.WARM_UPS):
        work()
    outputs = {name: torch.full_like(values, torch.nan) for name, values in work().items()}

    def replay():
        for name, values in work().items():
            outputs[name].copy_(values)

    return replay, outputs


def replay_on_cpu(patch=setattr, record=record_by_running):
    """Let trials on a CPU replay their steps, and others that have the same on a GPU."""
    patch(training_parts, "can_replay", lambda *_, fixed_shapes: fixed_shapes)
    patch(cuda_graphs, "record", record)
