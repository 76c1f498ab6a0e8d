"""A training step of ViT-Huge in bf16, timed as anyone would time it: prints milliseconds per step.

Nothing of halfstep is in it.
"""

import sys

import torch
from timm.models.vision_transformer import VisionTransformer

batch, warmup, steps = int(sys.argv[1]), 8, 20
with torch.device("cuda"):
    model = VisionTransformer(
        class_token=False, global_pool="avg", img_size=256, embed_dim=1280, num_classes=1024, depth=32, num_heads=16
    )
    images = torch.randn(batch, 3, 256, 256)
    labels = torch.arange(batch) % 1024
optimizer = torch.optim.Adam(model.parameters(), fused=True)
criterion = torch.nn.CrossEntropyLoss()


def step():
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


for _ in range(warmup):
    step()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
for _ in range(steps):
    step()
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end) / steps)
