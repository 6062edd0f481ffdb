from retcon.core.seeds import derive
from retcon.purify.mixing import purified


def test_seeds_are_stable_over_processes():
    assert derive(0, "rollout", 3) == 211106634516208403


def test_seeds_tell_their_parts_apart():
    parts = [(1,), ("1",), (1, 2), (12,), ("a", "b"), ("a,b",), ("ab",), ()]
    seeds = {derive(*p) for p in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)


def drawn(probability: float, **changed: int) -> list[bool]:
    where = {"seed": 1, "step": 2} | changed
    return [purified(probability, where["seed"], where["step"], "p", index) for index in range(400)]


def test_mixing_is_reproducible_and_hits_its_share():
    assert drawn(0.7) == drawn(0.7)
    assert 0.62 < sum(drawn(0.7)) / 400 < 0.78
    assert drawn(0.7) != drawn(0.7, step=3)
    assert drawn(0.7) != drawn(0.7, seed=3)


def test_mixing_at_its_ends():
    assert not any(drawn(0.0))
    assert all(drawn(1.0))


def test_a_higher_share_only_adds():
    assert all(more for less, more in zip(drawn(0.3), drawn(0.6), strict=True) if less)
