"""TextReuse: what depends on the text alone is computed once per micro-batch, nothing else is."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from diffbatch.pipeline import reuse
from diffbatch.pipeline.reuse import Memo, TextReuse

WIDTH, NUM_STEPS = 8, 5


class Projection(nn.Module):
    """Two layers with an activation between them, as models put before their blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(6, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)

    def forward(self, caption: Tensor) -> Tensor:
        found: Tensor = self.second(self.act(self.first(caption)))
        return found


class Transformer(nn.Module):
    """Cross attention over projected text, which reads the text in a second way too."""

    def __init__(self) -> None:
        super().__init__()
        self.text = Projection()
        self.to_q, self.to_k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm_k, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout()

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        text = self.dropout(self.text(encoder_hidden_states))
        key = self.norm_k(self.to_k(text)) + self.to_k(2 * text)  # 2 * text is a new tensor
        weights = (self.to_q(hidden_states) @ key.transpose(1, 2)).softmax(dim=-1)
        return hidden_states + weights @ text


@pytest.fixture
def model() -> Iterator[Transformer]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield Transformer().eval()


def calls_of(model: Transformer) -> Counter[str]:
    """Counts the calls that reach each layer; make it before a TextReuse."""
    calls: Counter[str] = Counter()

    def watch(name: str, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def counted(input: Tensor) -> Tensor:
            calls[name] += 1
            return forward(input)

        return counted

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.forward = watch(name, module.forward)  # type: ignore[method-assign]
    return calls


def steps(model: Transformer, texts: list[Tensor], num: int = NUM_STEPS) -> Tensor:
    """A loop as denoising runs it: one forward per text and step."""
    state = torch.linspace(-1, 1, 3 * WIDTH).view(1, 3, WIDTH)
    for _ in range(num):
        state = state + sum(model(hidden_states=state, encoder_hidden_states=t) for t in texts)
    return state


def texts_of(num_tokens: int = 9, num: int = 2) -> list[Tensor]:
    return [torch.randn(1, num_tokens, 6) for _ in range(num)]


def test_the_same_bits_with_fewer_calls(model: Transformer) -> None:
    texts = texts_of()
    expected = steps(model, texts)
    calls = calls_of(model)
    watched = TextReuse([model])
    with watched.using(Memo()):
        found = steps(model, texts)
    assert torch.equal(found, expected)
    assert calls["text.first"] == calls["text.second"] == 3, "one counted, then one per text"
    assert calls["to_q"] == 2 * NUM_STEPS
    assert calls["to_k"] == 2 * NUM_STEPS + 3, "its other input is new each time"
    assert watched.num_reused > 0


def test_a_layer_may_be_called_by_keyword(model: Transformer) -> None:
    class ByKeyword(Transformer):
        def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
            found: Tensor = self.to_k(input=self.text(caption=encoder_hidden_states))
            return found

    other, text = ByKeyword().eval(), texts_of()[0]
    expected = other(hidden_states=text, encoder_hidden_states=text)
    with TextReuse([other]).using(Memo()):
        found = [other(hidden_states=text, encoder_hidden_states=text) for _ in range(3)]
    assert all(torch.equal(one, expected) for one in found)


def test_another_micro_batch_has_its_own_results(model: Transformer) -> None:
    one, other = texts_of(), texts_of()
    expected = [steps(model, one), steps(model, other)]
    watched, memos = TextReuse([model]), [Memo(), Memo()]
    found = []
    for texts, memo in zip((one, other), memos, strict=True):
        with watched.using(memo):
            found.append(steps(model, texts))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not any(hasattr(text, reuse._MARK) for text in [*one, *other]), "callers keep the texts"


def test_a_short_text_is_not_worth_its_memory(model: Transformer) -> None:
    (text,) = texts_of(num_tokens=1, num=1)
    state = torch.randn(1, 2000, WIDTH)
    watched, memo = TextReuse([model]), Memo()
    with watched.using(memo):
        found = [model(hidden_states=state, encoder_hidden_states=text) for _ in range(3)]
    assert watched.num_reused == 0
    assert memo.texts == {}
    assert torch.equal(found[0], found[2])


def test_outside_of_a_micro_batch_nothing_is_kept(model: Transformer) -> None:
    texts = texts_of()
    watched = TextReuse([model])
    steps(model, texts)
    assert watched.num_reused == 0


def test_the_limit_of_bytes_holds(model: Transformer) -> None:
    texts = texts_of()
    expected = steps(model, texts)
    memo = Memo()
    room = memo.budget.left_bytes = 9 * WIDTH * 4 + 10  # one result of one text
    with TextReuse([model]).using(memo):
        found = steps(model, texts)
    assert torch.equal(found, expected)
    assert room - memo.budget.left_bytes == 9 * WIDTH * 4


def test_what_is_kept_goes_with_the_memo_and_needs_no_collection(model: Transformer) -> None:
    texts = texts_of()
    watched, memo = TextReuse([model]), Memo()
    with watched.using(memo):
        steps(model, texts)
    kept = [weakref.ref(marked) for _, marked in memo.texts.values()]
    results = [getattr(marked, reuse._MARK).results for _, marked in memo.texts.values()]
    kept += [weakref.ref(result) for by_module in results for result in by_module.values()]
    assert len(kept) > 2
    del results
    gc.collect()
    gc.disable()
    try:
        memo = Memo()
        assert [ref() for ref in kept] == [None] * len(kept)
    finally:
        gc.enable()


def test_an_error_in_a_forward_leaves_nothing_active(model: Transformer) -> None:
    watched = TextReuse([model])
    with pytest.raises(RuntimeError), watched.using(Memo()):
        model(hidden_states=torch.randn(1, 3, 5), encoder_hidden_states=texts_of()[0])
    steps(model, texts_of())
    assert watched.num_reused == 0
