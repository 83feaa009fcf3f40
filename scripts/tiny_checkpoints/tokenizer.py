"""Byte-level tokenizers: any text has ids of its own, nothing is unknown.

A few dozen merges for common words keep ordinary prompts short.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import CLIPTokenizer, PreTrainedTokenizerFast

_COMMON_WORDS = (
    "the of and in on with to at is its an from by over under near into red blue green yellow "
    "orange purple pink black white gray golden dark light bright small large tall old young "
    "circle square star ring heart cat dog bird fox horse man woman child house city street "
    "forest sea lake river mountain sky cloud sun moon night day morning evening snow rain wind "
    "fire water tree flower leaf stone glass wood metal paper window door table chair book lamp "
    "boat car train road bridge photo painting drawing portrait landscape close up detailed "
    "style soft background foreground running walking flying sitting holding wearing looking"
)

CLIP_BOS, CLIP_EOS = "<|startoftext|>", "<|endoftext|>"
CLIP_MAX_TOKENS = 77
T5_MAX_TOKENS = 512
_WORD_END = "</w>"
_SPACE = "\u0120"  # how byte-level pre-tokenizers write a space


def clip_tokenizer() -> CLIPTokenizer:
    """Lower-casing BPE with CLIP's word ends and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [[*word[:-1], word[-1] + _WORD_END] for word in _COMMON_WORDS.split()]
    merges, merged = _merges(words)
    tokens = [*alphabet, *(char + _WORD_END for char in alphabet), *merged, CLIP_BOS, CLIP_EOS]
    vocab = {token: index for index, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=CLIP_MAX_TOKENS)


def t5_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with T5's special tokens: pad 0, end 1, unknown 2, end appended."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges, merged = _merges([[_SPACE, *word] for word in _COMMON_WORDS.split()])
    tokens = ["<pad>", "</s>", "<unk>", *alphabet, *merged]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=T5_MAX_TOKENS,
    )


def _merges(words: list[list[str]]) -> tuple[list[tuple[str, str]], list[str]]:
    """Merge rules that join each word's symbols from the left, and the tokens they make."""
    rules: dict[tuple[str, str], None] = {}
    tokens: dict[str, None] = {}
    for word in words:
        head = word[0]
        for symbol in word[1:]:
            rules[head, symbol] = None
            head += symbol
            tokens[head] = None
    return list(rules), list(tokens)
