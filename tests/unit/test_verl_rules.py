"""What the rollouts in verl's trainer go by, without verl: its configuration, and which of a step are trained on."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn
from retcon.plugins.verl.choosing import Step, pack, unpack
from retcon.plugins.verl.router import RetconRouter
from retcon.plugins.verl.settings import Lengths, check_compatible, recipe_of, sampling_of
from retcon.plugins.verl.shared import size_sandbox
from retcon.plugins.verl.tasks import Repeats
from retcon.sandbox.pool import default_workers
from retcon.sandbox.types import Limits


class Config(dict[str, Any]):
    """Reads as verl's configuration does."""

    def __getattr__(self, name: str) -> Any:
        value = self[name]
        return Config(value) if isinstance(value, dict) else value


ROLLOUT = {"name": "vllm", "n": 16, "prompt_length": 2560, "response_length": 20480, "max_model_len": 27136,
           "calculate_log_probs": False, "agent": {"num_workers": 3}}  # fmt: skip
SAMPLER = {"sync_refill_failed_groups": True, "custom_sampler": {"name": "RetconSampler"}}
VERL: dict[str, Any] = {
    "actor_rollout_ref": {"rollout": ROLLOUT},
    "algorithm": {"adv_estimator": "grpo", "rollout_correction": {"bypass_mode": False, "rollout_is": None}},
    "trainer": {"use_v1": True, "nnodes": 2, "v1": {"sampler": SAMPLER}},
}


def configured(key: str = "", value: object = None) -> Config:
    """verl's configuration for CLEANER-4B, with one key changed."""
    config = copy.deepcopy(VERL)
    inner, *path = config, *key.split(".")
    while len(path) > 1:
        inner = inner.setdefault(path.pop(0), {})
    if key:
        inner[path[0]] = value
    return Config(config)


def cleaner(*overrides: str) -> Recipe:
    return load_recipe("cleaner-4b", overrides)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("algorithm.rollout_correction.bypass_mode", True, "bypass_mode = True: with repair.kind = 'saar'"),
        ("algorithm.rollout_correction.rollout_is", "token", "rollout_is = token"),
        ("algorithm.rollout_correction.rollout_rs", "sequence", "rollout_rs = sequence"),
        ("algorithm.filter_groups.enable", True, "select.dynamic of the recipe"),
        ("actor_rollout_ref.rollout.calculate_log_probs", True, "calculate_log_probs = true.*set it to false"),
        ("actor_rollout_ref.rollout.name", "sglang", "set it to vllm"),
        ("actor_rollout_ref.rollout.n", 8, "n = 8: the recipe rolls out 16"),
        ("actor_rollout_ref.rollout.max_model_len", 23040, "set it to 27136 or more"),
        ("trainer.use_v1", False, "use_v1"),
        ("trainer.v1.sampler.sync_refill_failed_groups", False, "set it to true"),
    ],
)
def test_what_cannot_go_together_is_refused_by_name(key: str, value: object, says: str) -> None:
    check_compatible(configured(), cleaner())
    with pytest.raises(RecipeError, match=says):
        check_compatible(configured(key, value), cleaner())


def test_probes_cannot_be_waited_for() -> None:
    with pytest.raises(RecipeError, match=r"repair\.probes = 2: verl rolls out"):
        check_compatible(configured(), cleaner("repair.probes=2"))


def test_without_a_repair_the_servers_log_probs_are_those_of_every_token() -> None:
    check_compatible(configured("actor_rollout_ref.rollout.calculate_log_probs", True), cleaner("repair.kind=none"))
    check_compatible(configured("algorithm.rollout_correction.bypass_mode", True), cleaner("repair.kind=none"))
    check_compatible(configured("actor_rollout_ref.rollout.max_model_len", 23040), cleaner("repair.kind=none"))


@pytest.mark.parametrize(
    "key",
    [
        "splice_weight=truncated", "imitate_spliced=0.1", "contrast=1.0", "dpo_beta=15.0", "echo=0.1", "sdpo=1.0",
        "shared_advantage=mean",
    ],
)  # fmt: skip
def test_a_loss_that_verl_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(RecipeError, match=f"rl.{key.partition('=')[0]}"):
        check_compatible(configured(), cleaner(f"rl.{key}"))


def test_children_are_trained_as_verl_can_train_them() -> None:
    inherit = ("credit.kind=inherit", "credit.weights=node")
    check_compatible(configured(), cleaner(*inherit))
    with pytest.raises(RecipeError, match=r"credit\.kind = node: .* set credit\.kind=root or credit\.kind=inherit"):
        check_compatible(configured(), cleaner("credit.kind=node"))
    with pytest.raises(RecipeError, match=r"credit\.weights = tree: .*set credit\.weights=node"):
        check_compatible(configured(), cleaner("credit.kind=inherit"))
    with pytest.raises(RecipeError, match=r"algorithm\.adv_estimator = rloo: .*set it to grpo"):
        check_compatible(configured("algorithm.adv_estimator", "rloo"), cleaner(*inherit))


def test_rollouts_that_branch_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"strategy.kind = 'arpo'.*set it to independent"):
        check_compatible(configured(), cleaner("strategy.kind=arpo"))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [("lora.rank", "4", r"actor_rollout_ref\.model\.lora_rank"), ("select.pass_rates", "rates.jsonl", "train_files")],
)
def test_what_verl_does_by_itself_is_refused_by_key(key: str, value: str, says: str) -> None:
    with pytest.raises(RecipeError, match=f"{key} = {value}: .*{says}"):
        check_compatible(configured(), cleaner(f"{key}={value}"))


def test_a_selection_needs_its_sampler() -> None:
    own = configured("trainer.v1.sampler.custom_sampler", {"name": None})
    check_compatible(own, cleaner())
    for key in ("select.kind=roc", "select.dynamic=true"):
        with pytest.raises(RecipeError, match="name to RetconSampler"):
            check_compatible(own, cleaner(key))


def test_the_section_names_a_recipe() -> None:
    assert recipe_of({"recipe": "cleaner-4b", "overrides": ["rl.group=4"]}).rl.group == 4
    for section, says in (({}, "names no recipe"), ({"recipe": "cleaner-4b", "override": []}, "unknown key retcon")):
        with pytest.raises(RecipeError, match=says):
            recipe_of(section)


def test_a_recipe_in_stages_is_refused() -> None:
    with pytest.raises(RecipeError, match="mini/stages/rstar2 has stages, and verl's trainer has none"):
        recipe_of({"recipe": "mini/stages/rstar2"})


def test_a_rollout_stays_within_the_recipes_tokens_and_verls() -> None:
    lengths = Lengths(prompt=2560, response=1000)
    assert lengths.limits(cleaner(), 100).max_tokens == 1100
    assert lengths.limits(cleaner(), 3000).max_tokens == 3560
    assert lengths.limits(cleaner("rl.overlong_buffer=0", "rollout.max_tokens=800"), 100).max_tokens == 800
    params = sampling_of({"temperature": 0.5, "top_p": 0.9, "top_k": -1}, cleaner("rollout.min_p=0.1"), 3560)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 0, 0.1)


def row(question: str, **about: object) -> dict[str, Any]:
    return {
        "raw_prompt": [{"role": "user", "content": question}], "data_source": "theirs",
        "reward_model": {"ground_truth": "1"}, "extra_info": about,
    }  # fmt: skip


def test_rollouts_of_a_task_that_its_step_has_had_are_counted() -> None:
    """In all calls of a step, by the id that names the task's rollouts, and its question where it has none; rows may
    have other numbers of them (`__rollout_n__`)."""
    repeats = Repeats()
    rows = [row("a"), row("b"), row("a"), row("c", id="7"), row("d", id="7")]
    assert repeats.before(1, rows, [2] * 5) == [0, 0, 2, 0, 2]
    assert repeats.before(1, [row("a"), row("a", id="8"), {"data_source": "unread"}], [2] * 3) == [4, 0, 0]
    assert repeats.before(2, [row("a"), row("a")], [2, 2]) == [0, 2]
    assert repeats.before(3, [row("a"), row("a"), row("a")], [5, 1, 2]) == [0, 5, 6], "none has an index twice"


def rollout(task: str, number: int, *, right: bool, failed: int = 0) -> Trajectory:
    """One call, failed or not, and an answer."""
    seen = Observation("0.0", "no", "error" if failed else "ok")
    called = Turn(
        (Segment("sampled", "go", (1, 2), (-1.0, -2.0)),), (ToolCall("0.0", "python", {"code": "1"}, 0),), (seen,)
    )
    answer = Turn((Segment("sampled", "\\boxed{1}", (3,), (-0.5,)),))
    return Trajectory(
        f"{task}/1/{number}", task, (Segment("prompt", "?", (7,)),), (called, answer), 1.0 if right else -1.0
    )


def test_a_trajectory_goes_along_without_its_ids() -> None:
    brief = unpack(pack(rollout("t", 0, right=True, failed=1)))
    assert (brief.id, brief.task, brief.reward, brief.calls, brief.failures) == ("t/1/0", "t", 1.0, 1, 1)
    assert [turn.text for turn in brief.turns] == ["go", "\\boxed{1}"]
    assert all(segment.ids is None for segment in brief.segments)


def step(*overrides: str) -> Step:
    return Step(load_recipe(None, ["select.kind=roc", "rl.group=2", "rl.prompts=2", *overrides]), 1, prompts=2)


def test_selection_keeps_the_clean_ones_of_the_right() -> None:
    made = step()
    made.add("u", {f"u_{n}_0": rollout("t", n, right=n > 1, failed=n % 2) for n in range(4)})
    assert len(made.groups["u"].kept) == 2
    assert "u_2_0" in made.groups["u"].kept
    assert "u_3_0" not in made.groups["u"].kept
    assert made.metrics()["retcon/kept"] == 2


def test_a_group_that_faults_took_is_drawn_anew_within_bounds() -> None:
    made = step("select.max_rounds=1")
    made.add("u", {"u_0_0": rollout("t", 0, right=True)})
    made.add("v", {f"v_{n}_0": rollout("s", n, right=True) for n in range(4)})
    assert (made.groups["u"].kept, made.to_draw(), made.rounds) == ({}, 1, 1)
    made.add("w", {})
    assert made.to_draw() == 0
    assert made.trained() == {"v"}
    assert made.metrics()["retcon/lost_to_faults"] == 3 + 4


def test_masked_rollouts_leave_the_batch_and_so_verls_baseline() -> None:
    """verl's GRPO takes the mean over all rows of a prompt, and gives a row without siblings its raw reward."""
    four = {f"u_{n}_0": rollout("t", n, right=n < 3) for n in range(4)}
    four["u_3_0"] = unpack(pack(replace(four["u_3_0"], stop="length")))
    made = step("rl.truncated=mask", "rl.group=4", "select.dynamic=true")
    made.add("u", four)
    assert set(made.groups["u"].kept) == {"u_0_0", "u_1_0", "u_2_0"}
    assert (made.groups["u"].informative, made.to_draw()) == (False, 2)
    made.add("v", {key: replace(one, stop="length") if key != "u_0_0" else one for key, one in four.items()})
    assert made.groups["v"].kept == {}
    made = step("rl.truncated=mask", "rl.group=4", "rl.masked_in_baseline=true")
    made.add("u", four)
    assert (len(made.groups["u"].kept), made.groups["u"].informative) == (4, True)


def test_a_row_with_a_number_of_rollouts_of_its_own_has_lost_none_by_that() -> None:
    made = step()
    for uid, count, lost in (("u", 6, 0), ("v", 3, 1)):
        left = {f"{uid}_{n}_0": rollout(uid, n, right=n > 1) for n in range(count - lost)}
        made.add(uid, left, count)
    assert made.metrics()["retcon/lost_to_faults"] == 1
    assert [len(group.kept) for group in made.groups.values()] == [2, 2]


def test_dynamic_sampling_asks_for_groups_that_teach_something() -> None:
    made = step("select.dynamic=true")
    made.add("u", {f"u_{n}_0": rollout("t", n, right=True) for n in range(4)})
    made.add("v", {f"v_{n}_0": rollout("s", n, right=n > 1) for n in range(4)})
    assert made.to_draw() == 1
    made.add("w", {f"w_{n}_0": rollout("r", n, right=n > 1) for n in range(4)})
    assert made.to_draw() == 0
    assert made.trained() == {"v", "w"}


def test_what_teaches_nothing_can_be_dropped_alone() -> None:
    """As in rStar2's recipes."""
    made = step("select.dynamic=true", "select.max_extra=0", "select.max_rounds=0")
    made.add("u", {f"u_{n}_0": rollout("t", n, right=True) for n in range(4)})
    made.add("v", {f"v_{n}_0": rollout("s", n, right=n > 1) for n in range(4)})
    assert (made.to_draw(), made.trained()) == (0, {"v"})


def test_where_nothing_teaches_there_is_a_batch_all_the_same() -> None:
    made = step("select.dynamic=true", "select.max_rounds=0")
    made.add("u", {f"u_{n}_0": rollout("t", n, right=True) for n in range(4)})
    assert (made.to_draw(), made.trained()) == (0, {"u"})


def test_a_rollout_stays_on_its_server_and_a_new_one_goes_where_the_fewest_tokens_are() -> None:
    router = RetconRouter({"a": 1, "b": 2})
    assert router.acquire_server("long", prompt_ids=[0] * 90, sampling_params={"max_tokens": 10}) == ("a", 1)
    for name in ("x", "y", "z"):
        assert router.acquire_server(name, prompt_ids=[0] * 20, sampling_params={"max_tokens": 5})[0] == "b"
    router.release_server("a", "long")
    assert router.get_status() == {"servers": {"a": 0, "b": 3}, "tokens": {"a": 0, "b": 75}, "total_inflight": 3,
                                   "active_servers": 2}  # fmt: skip
    assert router.acquire_server("x", prompt_ids=[0] * 40, sampling_params={"max_tokens": 5})[0] == "b"
    router.remove_servers(["b"])
    assert router.acquire_server("x")[0] == "a"
    for server in ("b", "b", "a"):
        router.release_server(server, "x")
    assert router.get_total_inflight() == 0
    router.add_servers({"b": 3})
    assert router.acquire_server("long", prompt_ids=[0])[0] == "a"
    assert router.clear_sticky_cache()["cleared_entries"] == 4
    assert router.acquire_server("long", prompt_ids=[0])[0] == "b"


def test_a_server_that_comes_back_is_not_credited_with_what_it_was_asked_before() -> None:
    router = RetconRouter({"a": 1, "b": 2})
    for name in ("x", "y"):
        router.acquire_server(name, prompt_ids=[0] * 50)
    assert router.get_status()["tokens"] == {"a": 50, "b": 50}
    router.remove_servers(["b"])
    router.add_servers({"b": 2})
    assert router.get_total_inflight() == 1
    router.release_server("b", "y")
    assert router.get_status()["tokens"] == {"a": 50, "b": 0}
    router.release_server("a", "x")
    assert router.get_status()["tokens"] == {"a": 0, "b": 0}


def test_without_a_server_the_router_says_what_verls_does() -> None:
    with pytest.raises(RuntimeError, match="No available servers"):
        RetconRouter({}).acquire_server("x")


def test_the_agent_loops_of_a_node_divide_its_cores() -> None:
    recipe = cleaner()
    node = default_workers(Limits(memory_mb=recipe.sandbox.memory_mb))
    assert size_sandbox(recipe, configured()).sandbox.workers == node // 2  # 3 on 2 nodes: 2 on one of them
    one = size_sandbox(recipe, configured("actor_rollout_ref.rollout.agent.num_workers", 10**6))
    assert one.sandbox.workers == recipe.sandbox.workers
    assert size_sandbox(cleaner("sandbox.workers=5"), configured()).sandbox.workers == 5
