"""One rank of a small training job: PyTorch's DistributedDataParallel over NCCL.

usage: torch_job.py STEPS      (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them)

Everything in it repeats exactly, so that the parameters at the end are the same bits over every network.
Prints "looping" after some steps and, at the end, "STEPS steps, parameters DIGEST, the longest took X s
(median Y s)".
"""
import hashlib
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # pylint: disable=wrong-import-position
import torch.distributed as dist  # pylint: disable=wrong-import-position

WIDTH = 2048
LAYERS = 3
BATCH = 64
BEFORE_LOOPING = 20


def main():
    steps = int(sys.argv[1])
    rank = int(os.environ["RANK"])
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    layers = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = torch.Generator(device="cuda").manual_seed(100 + rank)  # each rank's own
    took = []
    for step in range(steps):
        start = time.monotonic()
        inputs = torch.randn(BATCH, WIDTH, device="cuda", generator=data)
        optimizer.zero_grad()
        loss = ((model(inputs) - inputs.flip(1)) ** 2).mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        took.append(time.monotonic() - start)
        if step + 1 == BEFORE_LOOPING:
            print("looping", flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print(f"NCCL {'.'.join(str(part) for part in torch.cuda.nccl.version())}, torch {torch.__version__}")
    took = took[BEFORE_LOOPING:]
    print(f"{steps} steps, parameters {digest.hexdigest()[:16]}, the longest took {max(took):.3f} s "
          f"(median {statistics.median(took):.4f} s)", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
