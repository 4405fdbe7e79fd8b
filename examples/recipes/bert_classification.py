"""Job file: fine-tuning of Hugging Face's BERT as a text classifier, on texts of different lengths.

pip install 'hocket[hf]'
hocket train examples/recipes/bert_classification.py -n 2 --steps 300 --checkpoint saved --every 50
hocket export saved -o classifier --format hf --job examples/recipes/bert_classification.py

Then `transformers.BertForSequenceClassification.from_pretrained("classifier")` is the fine-tuned model.

The texts, the tokenizer and the sizes are toys, so that nothing is downloaded. For a real run, let MODEL be
`BertForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)`, let TEXTS be your dataset, and let
`collate` call its tokenizer with `padding="max_length", max_length=LONGEST, truncation=True, return_tensors="pt"`.
"""

import random

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from hocket import Evaluation, Job

LONGEST = 16
GOOD, BAD = ("good", "great", "clear", "quick"), ("bad", "poor", "vague", "slow")
PLAIN = ("the", "book", "was", "and", "a", "film", "very", "in", "parts", "of", "it")
IDS = {word: number for number, word in enumerate(("[PAD]", *GOOD, *BAD, *PLAIN))}


def texts(count: int) -> list[dict]:
    """Reviews of 3 to 16 words with a label: 1 if good words are more frequent than bad ones."""
    draw, found = random.Random(0), []
    while len(found) < count:
        words = draw.choices(GOOD + BAD + PLAIN, k=draw.randint(3, LONGEST))
        good, bad = (sum(word in kind for word in words) for kind in (GOOD, BAD))
        if good != bad:
            found.append({"text": " ".join(words), "label": int(good > bad)})
    return found


def collate(samples: list[dict]) -> dict[str, torch.Tensor]:
    """Tokenize texts, and pad them to one length: Hocket's stages are for one shape."""
    ids = torch.zeros(len(samples), LONGEST, dtype=torch.long)
    for row, sample in zip(ids, samples, strict=True):
        numbers = [IDS[word] for word in sample["text"].split()]
        row[: len(numbers)] = torch.tensor(numbers)
    labels = torch.tensor([sample["label"] for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def accuracy(output, labels, **inputs) -> torch.Tensor:
    """Share of right labels. The model computes the loss, so a metric gets all items of the samples."""
    return (output.logits.argmax(-1) == labels).float().mean()


torch.manual_seed(0)
TEXTS = texts(1200)
MODEL = BertForSequenceClassification(
    BertConfig(
        vocab_size=len(IDS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=LONGEST,
        num_labels=2,
    )
)

job = Job(
    model=MODEL.train(),
    loss=None,  # the model computes it from `labels`
    data=DataLoader(TEXTS[:1000], batch_size=16, shuffle=True, collate_fn=collate),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01),
    lr_schedule={"name": "linear", "steps": 300, "warmup_steps": 20},
    clip_grad_norm=1.0,
    evaluate=Evaluation(TEXTS[1000:], every=50, metrics={"accuracy": accuracy}, stop_after=3, keep_best=True),
    name="bert-classification",
)
