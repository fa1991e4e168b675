import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.workflow.graph import Graph, Node, NodeStatus, doomed, ready


def graph(**needs: tuple[str, ...]) -> Graph:
    return Graph(Node(name=name, needs=wanted) for name, wanted in needs.items())


def test_a_node_is_ready_when_all_it_needs_has_a_result() -> None:
    diamond = graph(d=("b", "c"), b=("a",), c=("a",), a=())
    assert ready(diamond, {}) == ("a",)
    assert ready(diamond, {"a": "running"}) == ()
    assert set(ready(diamond, {"a": "completed"})) == {"b", "c"}
    assert ready(diamond, {"a": "completed", "b": "fallback", "c": "running"}) == ()
    assert ready(diamond, {"a": "completed", "b": "fallback", "c": "completed"}) == ("d",)


def test_what_needs_a_failed_node_is_doomed_and_so_is_what_needs_that() -> None:
    chain = graph(a=(), b=("a",), c=("b",), other=())
    assert doomed(chain, {"a": "failed"}) == {"b": "a", "c": "b"}
    assert ready(chain, {"a": "failed"}) == ("other",)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([Node(name="a", needs=("b",))], "needs b, which is no node"),
        ([Node(name="a", needs=("b",)), Node(name="b", needs=("a",))], "circle"),
        ([Node(name="a", needs=("a",))], "circle"),
        ([Node(name="a"), Node(name="a")], "Two nodes"),
        ([Node(name="a", deadline=0)], "deadline"),
    ],
)
def test_what_is_no_graph_is_refused_when_it_is_made(nodes: list[Node], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Graph(nodes)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = [f"n{i}" for i in range(draw(st.integers(1, 8)))]
    return Graph(
        Node(name=name, needs=tuple(draw(st.sets(st.sampled_from(names[:at]), max_size=3)) if at else ()))
        for at, name in enumerate(names)
    )


@given(graphs(), st.data())
def test_every_node_is_settled_once_and_never_before_what_it_needs(of: Graph, data: st.DataObject) -> None:
    progress: dict[str, NodeStatus] = {}
    while len(progress) < len(of.nodes):
        for name in doomed(of, progress):
            assert name not in progress
            progress[name] = "skipped"
        startable = ready(of, progress)
        assert startable or len(progress) == len(of.nodes)
        if startable:
            name = data.draw(st.sampled_from(startable))
            assert all(progress[need] in ("completed", "fallback") for need in of.nodes[name].needs)
            progress[name] = data.draw(st.sampled_from(["completed", "fallback", "failed"]))
    for node in of.nodes.values():
        broken = any(progress[need] in ("failed", "skipped") for need in node.needs)
        assert (progress[node.name] == "skipped") == broken
