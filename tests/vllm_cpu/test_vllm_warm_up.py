"""A model that loads and cannot be computed is found before the first user, over HTTP and in the process."""

from pathlib import Path

import pytest

from harness import run_async
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.trial import put_on_trial
from headrace.engine.vllm.inprocess import VllmEngine
from headrace.errors import EngineUnavailable
from vllm_server import CONTEXT, ENVIRONMENT, SLOTS, vllm_server

SAMPLER = "dying_sampler:DyingSampler"


def test_a_server_that_is_healthy_until_its_first_token_is_refused_by_the_warm_up(tiny: Path, tmp_path: Path) -> None:
    with vllm_server(tiny, tmp_path / "log", "--logits-processors", SAMPLER) as server:

        async def scenario() -> None:
            async with OpenAIEngine(server.url, model="tiny", capabilities=None) as engine:
                assert await engine.models() == ["tiny"]
                with pytest.raises(EngineUnavailable, match="EngineCore"):
                    await engine.warm_up()
            trial = await put_on_trial(OpenAIEngine(server.url, model="tiny", capabilities=None))
            assert isinstance(trial.error, EngineUnavailable)

        run_async(scenario(), deadline=120)


@pytest.mark.filterwarnings("ignore")  # vLLM's and torch's own
def test_an_engine_in_the_process_that_cannot_say_a_token_does_not_open(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(ENVIRONMENT["PYTHONPATH"])
    options = {"enforce_eager": True, "dtype": "float32", "logits_processors": [SAMPLER]}
    engine = VllmEngine(tiny, slots=SLOTS, context=CONTEXT, options=options)

    async def enter() -> None:
        async with engine:
            pass

    with pytest.raises(EngineUnavailable, match="cannot answer with tiny"):
        run_async(enter(), deadline=300)
    assert engine.busy == 0
