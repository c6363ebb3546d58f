"""A node that stays against its deletion keeps its edges, whoever deleted it and however the conflict is settled."""

import pytest

from graphs import make_graph
from model.branch_programs import Verdict, follow, perform, read_state, root_of, seed
from model.history_model import KNOWS, MAIN, PERSON, SCHEMA, History

LAW = "a kept node kept an edge that was deleted with it"
WAYS = ("ours", "theirs", {"Person": "theirs", "Knows": "ours"}, 0b10110100, 0b01001011, 1 << 8 | 0b01101101)


@pytest.mark.model
def test_kept_nodes_keep_their_edges_as_in_the_model(tmp_path):
    decided = 0
    for number, (deleting, updating, how) in enumerate(
        (*sides, how) for sides in (("b1", MAIN), (MAIN, "b1")) for how in WAYS
    ):
        with make_graph(tmp_path / f"g{number}", SCHEMA) as graph:
            seed(graph)
            model = History(root_of(graph))
            one, other = sorted(model.state(MAIN)[PERSON])[:2]
            for operation in (
                ["write", MAIN, [["insert", KNOWS, 9_000, [one, other, 1, 1]]]],
                ["create", "b1", MAIN],
                ["write", deleting, [["delete", PERSON, "name", other]]],
                ["write", updating, [["update", PERSON, "rank", 3, "name", other]]],
                ["merge", "b1", MAIN, how],
            ):
                verdict = Verdict(model, operation)
                answer = perform(graph, operation, tmp_path / f"{number}.json")
                assert answer.get("refused") == verdict.expected.get("refused")
                verdict.apply()
                if verdict.branch is not None:
                    follow(graph, model, verdict.branch, verdict.state)
                    assert read_state(graph, verdict.branch) == model.state(verdict.branch)
            decided += LAW in verdict.seen
    assert 0 < decided < 2 * len(WAYS)
