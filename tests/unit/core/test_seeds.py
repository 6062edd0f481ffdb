from retcon.core.seeds import derive


def test_seeds_are_stable_over_processes():
    assert derive(0, "rollout", 3) == 211106634516208403


def test_seeds_tell_their_parts_apart():
    parts = [(1,), ("1",), (1, 2), (12,), ("a", "b"), ("a,b",), ("ab",), ()]
    seeds = {derive(*p) for p in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
