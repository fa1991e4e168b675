"""Whatever a model server says of itself, the doctor goes on: each part of it is replaced by what it is not."""

import copy
import json
import math
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

from account_bodies import SGLANG, STEP, TGI, TRITON, VLLM_METRICS, VLLM_SETTINGS
from headrace.engine.accounts import llama_server, sglang, tensorrt_llm, tgi, triton, vllm
from headrace.engine.accounts.reading import Metrics, count, number

_NUMBER = re.compile(rb"(?<=[ \"])[\d.]+(?=[\"\n])")
ODD: tuple[object, ...] = (
    *(None, True, -1, 0, 1.5, 1e308, 10**400, "", "nan", "inf", "1e999", "text", "a\0b", "a" * 5000),
    *([], {}, [1, "a", None], {"a": [{}]}, ["nan"], [{"a": 10**400}]),
)
"""What stands in JSON where something else should."""


def with_odd_parts(value: object) -> Iterator[object]:
    """The value with each of its parts, one at a time, replaced by each odd value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        for odd in (*ODD, *with_odd_parts(part)):
            other = copy.copy(value)
            other[key] = odd  # type: ignore[index]
            yield other


def with_odd_numbers(page: bytes) -> Iterator[bytes]:
    """A page of metrics with each of its numbers, and all of them at once, replaced by each odd one."""
    for odd in (b"NaN", b"+Inf", b"-Inf", b"1e308", b"9" * 400, b"?", b"0", b"-1"):
        for found in _NUMBER.finditer(page):
            yield page[: found.start()] + odd + page[found.end() :]
        yield _NUMBER.sub(odd, page)


MORE_METRICS = b"""\
vllm:num_preemptions_total{engine="0"} 12.0
vllm:num_preemptions_total{engine="1"} 12.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 50
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5
""" + VLLM_METRICS.replace('",kv_cache', '",kv_cache_memory_bytes="2000000000",kv_cache').encode()
MORE_SETTINGS: dict[str, object] = {
    "cache_config": {"sliding_window": 4096},
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 4},
    "quant_config": "AutoAWQConfig(quant_type=uint4, group_size=128)",
    "parallel_config": {
        "data_parallel_size": 4,
        "data_parallel_size_local": 2,
        "data_parallel_hybrid_lb": True,
        "is_moe_model": False,
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "distributed_executor_backend": "ray",
    },
}
BODIES = {
    vllm: (MORE_METRICS, {"version": "0.32.0"}, {"vllm_config": {**VLLM_SETTINGS, **MORE_SETTINGS}}),
    sglang: (SGLANG,),
    tgi: (TGI,),
    tensorrt_llm: ([STEP, STEP], {"version": "1.2.0"}),
    triton: (TRITON,),
    llama_server: (
        {"default_generation_settings": {"n_ctx": 512}, "total_slots": 2, "build_info": "b1", "model_ftype": "Q4_1"},
        {"data": [{"meta": {"size": 9, "n_params": 15}}]},
        [{"speculative": True}],
    ),
}
"""Of each kind of server, one for each of its paths."""
a_kind = pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__.rpartition(".")[2])


@a_kind
def test_no_kind_of_server_can_say_what_ends_the_doctor(kind: ModuleType) -> None:
    def as_said(body: object) -> bytes:
        return body if isinstance(body, bytes) else json.dumps(body).encode()

    said = [as_said(body) for body in BODIES[kind]]
    assert len(said) == len(kind.PATHS)
    assert kind.is_it(said[0])
    assert len(list(kind.remarks(said))) > 1
    asked = 0
    for place, body in enumerate(BODIES[kind]):
        changed = with_odd_numbers(body) if isinstance(body, bytes) else with_odd_parts(body)
        garbage = [b"", b"\xff", b"[" * 100_000, b"{" * 9, b"1" * 5000, *(as_said(odd) for odd in ODD)]
        for odd in (*garbage, *(as_said(one) for one in changed)):
            bodies = [*said[:place], odd, *said[place + 1 :]]
            if kind.is_it(bodies[0]):  # else the others are not read
                assert list(kind.remarks(bodies))
                asked += 1
    assert asked > 20


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:20])
def test_a_count_is_a_whole_number_that_can_be_meant(odd: object) -> None:
    assert count(odd) is None
    assert math.isfinite(number(odd))


def test_a_count_and_a_number_are_read_as_they_are() -> None:
    assert (count(4096), count(2**53), count(2**53 + 1)) == (4096, 2**53, None)
    assert (number("0.8"), number(7), number("nan"), number(10**400)) == (0.8, 7.0, 0.0, 0.0)


def test_metrics_whose_sum_is_no_number_have_none() -> None:
    assert Metrics(b'a{b="c"} 1e308\na{b="d"} 1e308\ne 2\ne 3\ne NaN\n').total("a") == 0
    assert Metrics(b"e 2\ne 3\ne NaN\n").total("e") == 5
