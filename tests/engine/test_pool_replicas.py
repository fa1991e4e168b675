"""The replicas of several pools, as operators know them."""

from headrace.engine.fallback import Fallback
from headrace.engine.pool.pool import EnginePool
from headrace.engine.pool.replicas import Replicas
from headrace.engine.scripted import ScriptedEngine
from virtual_time import run_virtually


def pool_of(*names: str, model: str) -> EnginePool:
    return EnginePool({name: ScriptedEngine("Hello you", model=model) for name in names})


def test_pools_are_found_behind_a_fallback_and_each_once() -> None:
    async def scenario() -> None:
        large, small, other = pool_of("gpu1", "gpu2", model="large"), pool_of("gpu2", model="small"), ScriptedEngine("")
        found = Replicas([Fallback([large, small]), None, other, large]).standings()
        assert [(one.name, one.model) for one in found] == [("gpu1", "large"), ("gpu2", "large"), ("gpu2", "small")]
        assert Replicas([None, other, Fallback([other])]).standings() == []

    run_virtually(scenario())


def test_a_server_of_two_models_goes_out_of_service_and_comes_back_for_both() -> None:
    async def scenario() -> None:
        large, small = pool_of("gpu1", "gpu2", model="large"), pool_of("gpu2", "cpu", model="small")
        async with Fallback([large, small]) as chain:
            replicas = Replicas([chain])
            replicas.drain("gpu2")
            assert await replicas.settles("gpu2")
            drained = [("gpu1", False), ("gpu2", True), ("gpu2", True), ("cpu", False)]
            assert [(one.name, one.draining) for one in replicas.standings()] == drained
            replicas.resume("gpu2")
            assert await replicas.settles("gpu2")
            assert not any(one.draining for one in replicas.standings())

    run_virtually(scenario())


def test_a_server_is_the_last_one_if_it_is_that_for_any_of_its_models() -> None:
    async def scenario() -> None:
        large, small = pool_of("gpu1", "gpu2", model="large"), pool_of("gpu2", model="small")
        async with Fallback([large, small]) as chain:
            replicas = Replicas([chain])
            assert [replicas.is_last(name) for name in ("gpu1", "gpu2", "nowhere")] == [False, True, False]

    run_virtually(scenario())
