"""Tokenizer and text encoder, and the heads that teach the encoder to read a caption.

The heads exist in training only: from the end token they tell which colour, shape, background,
size and place the caption names. A minute of that binds each colour to its noun, which the
transformer alone takes long to learn.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from demo_model.draw import ATTRIBUTES, Caption, caption, sample_scene, vocabulary
from demo_model.loop import Progress

TEXT_WIDTH = 128
MAX_WORDS = 20
"""Longest caption in tokens, end token included."""
CAPTIONS_PER_RANK = 128
_SPECIAL = ["<pad>", "</s>", "<unk>"]
_VOCABULARY_SIZE = 64


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per known word, lower case, any other word unknown, end token appended."""
    words = _SPECIAL + vocabulary()
    assert len(words) <= _VOCABULARY_SIZE
    tokenizer = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=512,
    )


def build_text_encoder() -> UMT5EncoderModel:
    """A stock encoder of two layers, about 0.3 M parameters."""
    config = UMT5Config(
        vocab_size=_VOCABULARY_SIZE,
        d_model=TEXT_WIDTH,
        d_kv=32,
        num_heads=4,
        d_ff=256,
        num_layers=2,
        num_decoder_layers=2,
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=16,
        relative_attention_max_distance=32,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    encoder = UMT5EncoderModel(config)
    encoder.shared.weight.no_muon = True
    return encoder


class Reader(nn.Module):
    """The text encoder with its training-only heads."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = build_text_encoder()
        self.tokenizer = build_tokenizer()
        self.heads = nn.ModuleDict(
            {name: nn.Linear(TEXT_WIDTH, len(values) + 1) for name, values in ATTRIBUTES.items()}
        )
        for head in self.heads.values():
            head.weight.no_muon = True

    def forward(self, captions: list[Caption]) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (B, MAX_WORDS, TEXT_WIDTH), mask (B, MAX_WORDS) and the heads' mean loss."""
        tokens = self.tokenizer(
            [c.text for c in captions],
            padding="max_length",
            max_length=MAX_WORDS,
            truncation=True,
            return_tensors="pt",
        )
        mask = tokens.attention_mask
        states = self.encoder(tokens.input_ids, mask).last_hidden_state
        end = states[torch.arange(len(captions)), mask.sum(dim=1) - 1]
        losses = [
            F.cross_entropy(self.heads[name](end).float(), _targets(name, captions))
            for name in ATTRIBUTES
        ]
        return states, mask, torch.stack(losses).mean()


def loss(reader: nn.Module, progress: Progress) -> Tensor:
    """The heads' loss on fresh captions: the text encoder's own lesson, before the transformer."""
    rng = random.Random(int(torch.randint(2**62, (1,), generator=progress.rng)))
    captions = [caption(sample_scene(rng), rng) for _ in range(CAPTIONS_PER_RANK)]
    value: Tensor = reader(captions)[2]
    return value


def _targets(name: str, captions: list[Caption]) -> Tensor:
    values = ATTRIBUTES[name]
    silent = len(values)
    return torch.tensor(
        [values.index(c.named[name]) if name in c.named else silent for c in captions]
    )
