#!/usr/bin/env python
"""What a learning rate of SFT does to what a model knew: its loss on English before and after a few steps.

python benchmarks/studies/rates.py smollm2-135m --lr 4e-3 4e-4        (first: retcon model get smollm2-135m)

Each step learns one short conversation with a call, all of its tokens, in float32, at a cosine rate from the peak on.
"""

from __future__ import annotations

import argparse

import torch
from transformers import PreTrainedModel

from retcon.chat.tokenizer import load_tokenizer
from retcon.models.checking import ENGLISH
from retcon.models.loading import load_model
from retcon.models.locating import locate
from retcon.train.optim import adamw, learning_rate

CONVERSATION = """<|im_start|>user
What is {a} times 17?<|im_end|>
<|im_start|>assistant
```python
print({a} * 17)
```<|im_end|>
<|im_start|>tool
{product}<|im_end|>
<|im_start|>assistant
It is \\boxed{{{product}}}.<|im_end|>"""


def loss(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Nats a token, in the mean."""
    return model(ids, labels=ids).loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or a name of `retcon model get`")
    parser.add_argument("--lr", type=float, nargs="+", default=[4e-3, 4e-4], help="peaks, one after the other")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = locate(options.model)
    tokenizer = load_tokenizer(folder)
    english = torch.tensor([tokenizer.encode(ENGLISH)])
    for lr in options.lr:
        model = load_model(folder)
        optimiser = adamw(model, lr, weight_decay=0.0)
        with torch.no_grad():
            before = loss(model, english).item()
        for step in range(options.steps):
            text = CONVERSATION.format(a=3 + 2 * step, product=17 * (3 + 2 * step))
            loss(model, torch.tensor([tokenizer.encode(text)])).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, options.steps, peak=lr, rising=1, schedule="cosine")
            optimiser.step()
            optimiser.zero_grad()
        with torch.no_grad():
            after = loss(model, english).item()
        print(f"lr {lr:g}: English {before:.2f} nats a token, {after:.2f} after {options.steps} steps", flush=True)


if __name__ == "__main__":
    main()
