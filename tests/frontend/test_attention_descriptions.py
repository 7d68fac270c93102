"""What attention is said to be, in words: of all idioms, and of masks of every class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lynx
from lynx.attention_sites import AttentionSite
from lynx.ir import parse_graph
from lynx.ir.ops.fusion import Region
from lynx.passes.attention import describe_score
from tests.frontend.attention_idioms import Idiom
from tests.frontend.attention_more_idioms import IDIOMS
from tests.frontend.test_recognise_attention import Counter, drawn, with_dynamic_sizes

DENSE = "additive bias (batch, query, key)"

EXPECTED = {
    "plain": "no mask, scale 0.25",
    "without_scale": "no mask",
    "keys_already_transposed": "no mask, scale 0.25",
    "plain_in_three_dimensions": "no mask, scale 0.25",
    "returns_weights": "no mask, scale 0.25",
    "written_by_hand": "no mask, scale 0.25",
    "einsum": "no mask, scale 0.25",
    "bert": "padding, scale 0.25",
    "hugging_face_rotary": "no mask, scale 0.25",
    "hugging_face_llama": f"scale 0.25, {DENSE}",
    "hugging_face_grouped": f"scale 0.25, {DENSE}, groups of 2",
    "gemma_softcap": f"scale 0.25, softcap 5, {DENSE}, groups of 2",
    "meta_llama": "scale 0.25, additive bias (query, key)",
    "nano_gpt": "dense mask (query, key), scale 0.25",
    "old_gpt2": "dense mask (query, key), scale 0.25",
    "gpt_neox": "dense mask (query, key), scale 0.25, additive bias (batch, head, query, key)",
    "falcon_alibi": f"scale 0.25, additive bias (batch, head, key), {DENSE}",
    "t5": "padding, additive bias (head, query, key)",
    "timm_vit": "no mask",
    "swin": f"additive bias (head, query, key), {DENSE}",
    "stable_diffusion": "no mask, scale 0.25",
    "whisper": "no mask",
    "sdpa": "no mask, scale 0.25",
    "sdpa_causal": "causal, scale 0.3",
    "sdpa_masked_and_grouped": f"scale 0.25, {DENSE}, groups of 2",
    "sdpa_padded": "padding, scale 0.25",
    "sdpa_in_three_dimensions": "no mask, scale 0.25",
    "gpt_oss_sinks": "causal, scale 0.25, groups of 2, sink",
    "softmax_plus_one": "no mask, scale 0.1, sink",
    "softmax_plus_one_shifted": "no mask, scale 0.25, sink",
    "by_logsumexp": "no mask, scale 0.25",
    "by_log_softmax": "no mask, scale 0.25",
    "grouped_einsum": "causal, scale 0.25, groups of 2",
    "grouped_in_five_dimensions": "no mask, scale 0.25, groups of 2",
    "repeat_interleaved": "no mask, scale 0.25, groups of 2",
    "multi_query_merged": "causal, scale 0.25, groups of 4",
    "sliding_window": "sliding window of 4, scale 0.25",
    "documents": "documents (equal ids), scale 0.25",
    "alibi_of_indices": "no mask, scale 0.25, ALiBi",
    "masked_in_place": "padding, scale 0.25",
    "weights_masked_again": "padding, scale 0.25",
    "masked_softmax": "padding, scale 0.25",
    "cross_attention_of_other_depth": "no mask, scale 0.25",
    "one_token": "no mask, scale 0.25",
    "keys_first": "no mask, scale 0.25",
    "over_the_first_axis": "no mask, scale 0.25",
    "without_batch": "no mask, scale 0.25",
    "safe_rows": "causal with offset -1, scale 0.25",
    "gated_with_trained_bias": "scale 0.25, additive bias (head, query, key)",
}
"""What each idiom is said to be."""


def test_the_table_is_complete() -> None:
    assert sorted(EXPECTED) == sorted(idiom.name for idiom in IDIOMS)


@pytest.mark.parametrize(
    ("idiom", "dynamic"),
    [*((i, True) for i in IDIOMS), *((i, False) for i in IDIOMS if i.name == "old_gpt2")],
    ids=lambda item: getattr(item, "name", "dynamic" if item else "static"),
)
def test_idioms(idiom: Idiom, dynamic: bool) -> None:
    given = drawn(idiom, torch.float32, training=True)
    if dynamic:
        with_dynamic_sizes(given)
    counter = Counter()
    torch.compile(idiom.function, backend=counter)(*given)
    assert counter.messages == [f"fused: {EXPECTED[idiom.name]}"]


def described(body: str, *parameters: str, scores: str = "f32[2, 4, s0, s1]") -> list[str]:
    """Return the words for a score function; `body` computes `%r` of `%s` and of parameters."""
    inputs = ", ".join([f"%s: {scores}", *parameters])
    graph = parse_graph(f"graph @score({inputs}) {{\n{body}\nreturn %r\n}}")
    (result,) = graph.outputs
    assert result is not None
    return describe_score(Region(graph.inputs, graph.ops, (result,))).words()


PLACES = """
%q0 = iota 0, 1 {length = s0, dtype = i64} : i64[s0]
%q = unsqueeze %q0 {dim = 1} : i64[s0, 1]
%k = iota 0, 1 {length = s1, dtype = i64} : i64[s1]
%d = sub %q, %k : i64[s0, s1]
"""
END = "\n%r = where %m, %s, -inf : f32[2, 4, s0, s1]"
PAIRS = "bool[s0, s1]"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"%m = ge %d, 0 : {PAIRS}", "causal"),
        (f"%m = gt %q, %k : {PAIRS}", "causal with offset -1"),
        ("%o = add %q, s1 - s0 : i64[s0, 1]\n" f"%m = le %k, %o : {PAIRS}",
         "causal with offset -s0 + s1"),
        (f"%m = le %d, 0 : {PAIRS}", "keys from the query on"),
        (f"%a = ge %d, 0 : {PAIRS}\n%b = lt %d, 128 : {PAIRS}\n%m = bitwise_and %a, %b : {PAIRS}",
         "sliding window of 128"),
        (f"%a = abs %d : i64[s0, s1]\n%m = le %a, 3 : {PAIRS}", "window of 3 to each side"),
        (f"%a = abs %d : i64[s0, s1]\n%m = lt 3, %a : {PAIRS}",
         "causal with offset -4 or keys from the query and 4 on"),
        (f"%a = ge %d, 0 : {PAIRS}\n%b = lt %k, 5 : bool[s1]\n%m = bitwise_or %a, %b : {PAIRS}",
         "prefix of 5"),
        (f"%m = eq %q, %k : {PAIRS}", "the query itself"),
        (f"%m = ne %q, %k : {PAIRS}", "all but the query itself"),
        ("%m = lt %k, 7 : bool[s1]", "keys below 7"),
        ("%x = div_rounded %q, 4 : i64[s0, 1]\n%y = div_rounded %k, 4 : i64[s1]\n"
         f"%m = eq %x, %y : {PAIRS}", "documents (equal ids)"),
        ("%x = mul %q, %k : i64[s0, s1]\n" f"%m = lt %x, 50 : {PAIRS}",
         "computed from positions (query, key)"),
    ],
)  # fmt: skip
def test_masks_of_positions(body: str, expected: str) -> None:
    assert described(PLACES + body + END) == [expected]


@pytest.mark.parametrize(
    ("parameter", "body", "expected"),
    [
        ("%m: bool[s0, s1]", "", "dense mask (query, key)"),
        ("%m: bool[2, 1, s0, s1]", "", "dense mask (batch, query, key)"),
        ("%m: bool[2, 1, 1, s1]", "", "padding"),
        ("%l: i64[2, 1, 1, 1]", "%m = lt %k, %l : bool[2, 1, 1, s1]", "padding"),
        ("%l: i64[2, 1, 1, 1]", "%a = ge %d, 0 : bool[s0, s1]\n%b = lt %k, %l : bool[2, 1, 1, s1]\n"
         "%m = bitwise_and %a, %b : bool[2, 1, s0, s1]", "causal and padding"),
        ("%l: i64[2, 1, 1, 1]", "%a = ge %d, 0 : bool[s0, s1]\n%b = lt %k, %l : bool[2, 1, 1, s1]\n"
         "%m = bitwise_or %a, %b : bool[2, 1, s0, s1]", "prefix of a number of the data"),
        ("%l: f32[]", "%m = gt %s, %l : bool[2, 4, s0, s1]",
         "where the scores themselves say so"),
    ],
)  # fmt: skip
def test_masks_of_data(parameter: str, body: str, expected: str) -> None:
    assert described(PLACES + body + END, parameter) == [expected]


WHOLE = "f32[2, 4, s0, s1]"


@pytest.mark.parametrize(
    ("parameters", "body", "expected"),
    [
        ((), f"%r = mul %s, 1.0 : {WHOLE}", ["no mask"]),
        ((), f"%a = div %s, 8.0 : {WHOLE}\n%r = neg %a : {WHOLE}", ["no mask", "scale -0.125"]),
        ((), f"%a = mul %s, 0.125 : {WHOLE}\n%b = div %a, 50.0 : {WHOLE}\n%c = tanh %b : {WHOLE}\n"
             f"%r = mul %c, 50.0 : {WHOLE}", ["no mask", "scale 0.125", "softcap 50"]),
        ((), f"%r = clamp %s, -2.0, 2.0 : {WHOLE}",
         ["no mask", "scores at least -2 and at most 2"]),
        (("%t: f32[4, 1, 1]",), f"%r = mul %s, %t : {WHOLE}",
         ["no mask", "scale by an operand (head)"]),
        (("%t: f32[4, 1, 1]",), "%f = cast %d {dtype = f32} : f32[s0, s1]\n"
         f"%b = mul %f, %t : f32[4, s0, s1]\n%r = sub %s, %b : {WHOLE}", ["no mask", "ALiBi"]),
        (("%t: f32[4, s0, s1]",), f"%r = add %s, %t : {WHOLE}",
         ["additive bias (head, query, key)"]),
        ((), f"%a = mul %s, %s : {WHOLE}\n%r = add %a, %s : {WHOLE}",
         ["no mask", "a function of the score"]),
    ],
)  # fmt: skip
def test_what_is_done_to_scores(
    parameters: tuple[str, ...], body: str, expected: list[str]
) -> None:
    assert described(PLACES + body, *parameters) == expected


class Attending(torch.nn.Module):
    """Causal attention of two heads of queries for each of keys, with softcap and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.project(x).view(b, n, 8, 4).transpose(1, 2).split([4, 2, 2], 1)
        k, v = (y.repeat_interleave(2, 1) for y in (k, v))
        scores = torch.tanh(q @ k.mT * 0.5 / 50) * 50
        hidden = ~torch.ones(n, n, dtype=torch.bool).tril()
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        weights = torch.nn.functional.dropout(weights, 0.1, self.training)
        return (weights @ v).transpose(1, 2).reshape(b, n, 16)


def sites(function: Callable[..., Any], *given: torch.Tensor) -> list[AttentionSite]:
    return lynx.explain(function, *given).attention


def test_explanation_lists_sites() -> None:
    model = torch.nn.Sequential(Attending(), Attending())
    found = sites(lambda x: model(x).sum(), torch.randn(2, 9, 16))
    words = ("causal", "scale 0.5", "softcap 50", "groups of 2", "dropout 0.1", "depth 4")
    assert [site.words for site in found] == [words] * 4
    assert [site.is_gradient for site in found] == [False, False, True, True]
    assert {site.sizes for site in found} == {(2, 4, 9, 9)}
    assert {site.provider for site in found} == {"native kernel"}
    assert all(site.loc.file == __file__ and site.loc.line for site in found)
    assert len({site.loc.module for site in found}) == 2
    text = str(lynx.explain(model.eval(), torch.randn(2, 9, 16)))
    assert "attention:\n" in text
    assert (
        "causal, scale 0.5, softcap 50, groups of 2, depth 4; attention of f32 over 2 x 4" in text
    )


def test_explanation_tells_why_a_site_was_left() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).softmax(-2) @ x

    (site,) = sites(twice, torch.randn(2, 9, 16))
    assert site.refusal
    assert "left as it is, since" in str(site)


def test_explanation_tells_of_products_and_softmax() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).softmax(-1) @ x

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "LYNX_PIPELINE", "choose-attention{way=unfused}, decompose, lower, plan-memory"
        )
        (site,) = sites(attend, torch.randn(2, 9, 16))
    assert site.provider == "unfused (computed unfused, as asked for)"
