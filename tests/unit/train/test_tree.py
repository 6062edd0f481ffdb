"""A rollout's tree as weighted samples: which nodes are trained, with which advantage and weight."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.types import Parent, Segment, ToolCall, Trajectory, Turn
from retcon.plugins.losses import check_loss_supported
from retcon.rollout.context import RolloutLimits
from retcon.train.batch import collate
from retcon.train.objective.loss import Totals
from retcon.train.objective.tree import CreditedGroup, credit_groups, loss_share, node_fates, tree_metrics
from retcon.train.prompts import StepGroups, with_records, with_selections
from retcon.train.update import to_samples

LIMITS = RolloutLimits(1000, 4)


def node(id: str, *children: Trajectory, parent: str = "", call: str = "0.0.0", **changes: object) -> Trajectory:
    """A node that made one call, `0.0.0`, and wrote two tokens."""
    written = Segment("sampled", "ab", (3, 4), (-1.0, -2.0))
    turn = Turn((written,), (ToolCall("0.0.0", "python", {}, 0),) if children else ())
    above = Parent(parent, 0, call) if parent else None
    made = Trajectory(id, "t", (Segment("prompt", "p", (1, 2)),), (turn,), parent=above, children=children)
    return replace(made, **changes)


def recipe(*changes: str) -> Recipe:
    return load_recipe(None, ["rl.algorithm=rloo", *changes])


def group(*roots: Trajectory) -> list[Trajectory]:
    return [replace(root, reward=reward) for root, reward in zip(roots, (1.0, 0.0, 0.0), strict=True)]


def credited(made: list[Trajectory], *changes: str) -> CreditedGroup:
    changed = recipe(*changes)
    ((found,), _) = credit_groups([made], changed.rl, changed.credit, LIMITS)
    return found


PLAIN = group(
    node("a", node("a/x", node("a/x/y", parent="a/x"), parent="a"), node("a/z", parent="a")), node("b"), node("c")
)


def advantages(made: list[Trajectory], *changes: str) -> dict[str, float]:
    found = credited(made, *changes)
    return dict(zip((one.id for one in found.nodes), found.advantages, strict=True))


def test_by_default_roots_alone_are_trained():
    assert advantages(PLAIN) == {"a": 1.0, "b": -0.5, "c": -0.5}


def test_children_inherit_the_advantage_of_their_root():
    found = advantages(PLAIN, "credit.kind=inherit")
    assert {id for id, value in found.items() if value == 1.0} == {"a", "a/x", "a/x/y", "a/z"}


def test_a_node_with_a_reward_is_compared_with_the_other_roots_of_its_group():
    """RAO, equation 3: A(node) = R(node) - the mean reward of the other rollouts' roots; b and c have 0."""
    wrong = node("a/x", node("a/x/y", parent="a/x", reward=1.0), parent="a", reward=0.0)
    silent = node("a/z", parent="a", stop="length")
    used = node("a/w", parent="a")
    found = advantages(group(node("a", wrong, silent, used), node("b"), node("c")), "credit.kind=node")
    assert found == {"a": 1.0, "a/x": 0.0, "a/x/y": 1.0, "a/z": 0.0, "a/w": 1.0, "b": -0.5, "c": -0.5}


def test_the_bonus_for_delegation_is_the_mean_success_of_children_and_no_sum():
    """RAO, equation 1, with λ = 0.4; two of a's four children succeed."""
    children = [node(f"a/{n}", parent="a", reward=float(n % 2)) for n in range(4)]
    made = group(node("a", *children), node("b", node("b/0", parent="b", reward=1.0)), node("c"))
    found = advantages(made, "credit.kind=node", "credit.delegation=0.4")
    assert found["a"] == pytest.approx(1.2 - (0.4 + 0.0) / 2)
    assert found["b"] == pytest.approx(0.4 - (1.2 + 0.0) / 2)
    assert found["a/1"] == pytest.approx(1.0 - 0.2)
    assert found["b/0"] == pytest.approx(1.0 - 0.6)


def test_a_child_counts_in_a_group_whose_roots_are_all_right():
    made = [replace(root, reward=1.0) for root in (node("a", node("a/x", parent="a", reward=0.0)), node("b"))]
    assert advantages(made, "credit.kind=node") == {"a": 0.0, "b": 0.0, "a/x": -1.0}


def test_what_cannot_be_trained_says_why_and_what_is_below_it_goes_with_it():
    taken_out = node("a/x", node("a/x/y", parent="a/x"), parent="a", call="0.1.0")
    lost = node("a/l", parent="a", stop="infrastructure")
    short = replace(node("a/s", parent="a"), turns=())
    (root, *_) = made = group(node("a", taken_out, lost, short, node("a/k", parent="a")), node("b"), node("c"))
    assert {one.id: fate for one, fate in node_fates(root, recipe().rl)} == {
        "a": "", "a/x": "rolled_back", "a/x/y": "rolled_back", "a/l": "infrastructure", "a/s": "no_room", "a/k": "",
    }  # fmt: skip
    assert [one.id for one in credited(made, "credit.kind=inherit").nodes] == ["a", "b", "c", "a/k"]


def test_a_masked_root_masks_its_tree():
    made = [replace(PLAIN[0], stop="length"), *PLAIN[1:]]
    assert {fate for _, fate in node_fates(made[0], recipe("rl.truncated=mask").rl)} == {"masked"}


def test_fifty_children_weigh_as_much_as_their_root():
    many = node("a", *(node(f"a/{n}", parent="a") for n in range(50)))
    made = group(many, node("b", node("b/0", parent="b")), node("c"))
    tree, by_node = (credited(made, "credit.kind=inherit", f"credit.weights={w}") for w in ("tree", "node"))
    assert math.fsum(tree.scales[f"a/{n}"] for n in range(50)) == pytest.approx(1.0)
    assert tree.scales["b/0"] == 1.0
    assert "a" not in tree.scales
    assert by_node.scales == {}
    config = recipe("credit.kind=inherit").rl
    for found, weight in ((tree, 3 + 2), (by_node, 3 + 51)):
        samples = to_samples(found.nodes, found.advantages, config, found.scales)
        batch = collate(samples)
        totals = Totals(sum(2 * s.scale for s in samples), sum(s.scale for s in samples))
        assert totals.sequences == pytest.approx(weight)
        pushed = sum(s.scale * s.advantages[0] for s in samples)
        for algorithm in ("dapo", "grpo", "gspo"):  # means over tokens and over sequences, of two tokens each
            loss = recipe(f"rl.algorithm={algorithm}").rl.loss(batch.old_logprobs, batch, totals)
            assert loss.value.item() == pytest.approx(-pushed / weight, abs=1e-6)
    share = loss_share(to_samples(tree.nodes, tree.advantages, config, tree.scales), set(tree.scales), "token")
    assert share == pytest.approx(1.5 / (2.0 + 1.5))


def test_each_depth_of_a_tree_weighs_as_much_as_the_root():
    assert credited(PLAIN, "credit.kind=inherit").scales == {"a/x": 0.5, "a/z": 0.5, "a/x/y": 1.0}


def test_stored_children_say_what_became_of_them():
    taken_out = node("a/x", parent="a", call="0.1.0")
    made = group(node("a", taken_out, node("a/k", parent="a")), node("b", node("b/k", parent="b")), node("c"))
    drawn = StepGroups()
    drawn.add(made, [made[0], made[2]])
    for kind, kept in (("root", "root_only"), ("inherit", "kept")):
        given = recipe(f"credit.kind={kind}", "rl.group=2")
        one = credited([made[0], made[2]], f"credit.kind={kind}")
        samples = to_samples(one.nodes, one.advantages, given.rl)
        learnt = {n.id: (a, s) for n, a, s in zip(one.nodes, one.advantages, samples, strict=True)}
        stored = {n.id: n for root in with_records(with_selections(given, drawn), 1, learnt, {}) for n in root.tree}
        assert {id: n.selection for id, n in stored.items()} == {
            "a": "kept", "a/x": "rolled_back", "a/k": kept, "b": "selection", "b/k": "selection", "c": "kept",
        }  # fmt: skip
        assert (stored["a/k"].training.advantage is not None) == (kind == "inherit")


def test_metrics_count_children_their_tokens_and_limits():
    made = [replace(PLAIN[0], refused=3), *PLAIN[1:]]
    assert tree_metrics([made]) == {
        "children": 1.0, "children_depth": 2, "children_tokens": 6, "children_pass_rate": None,
        "children_refused": 3, "limits_reached": 1,
    }  # fmt: skip
    graded = node("d", *(node(f"d/{n}", parent="d", reward=float(n)) for n in range(4)))
    assert tree_metrics([[graded]])["children_pass_rate"] == 0.75


def test_other_trainers_refuse_it():
    with pytest.raises(RecipeError, match=r"credit\.kind = inherit: TRL cannot train children so"):
        check_loss_supported(recipe("credit.kind=inherit"), "TRL")
