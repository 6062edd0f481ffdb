"""Start verl's trainer: `python -m retcon.plugins.verl --config-path FOLDER --config-name NAME [KEY=VALUE …]`.

In place of `python -m verl.trainer.main_ppo`, which asks our manager only once its GPU workers are up, and on a Ray
that runs already reads `${oc.env:…}` and relative paths where `ray start` was called.
"""

from __future__ import annotations

import os
from typing import Any

import hydra
from omegaconf import OmegaConf

from retcon.core.errors import RetconError
from retcon.plugins.verl.settings import SECTION, check_compatible, recipe_of


@hydra.main(config_path=None, version_base=None)  # type: ignore[untyped-decorator]  # hydra has no types
def main(config: Any) -> None:
    """Resolve and check the configuration, then run verl's trainer. Exits before Ray is asked for anything."""
    try:
        OmegaConf.resolve(config)
        recipe = recipe_of(config.get(SECTION))
        check_compatible(config, recipe)
    except RetconError as error:
        raise SystemExit(f"error: {error}") from error
    trainer, actor = config.trainer, config.actor_rollout_ref
    print(
        f"{config[SECTION].recipe}: {trainer.nnodes} × {trainer.n_gpus_per_node} GPUs · model {actor.model.path} · "
        f"data {config.data.train_files} · {actor.rollout.agent.num_workers} agent loops · sandboxes "
        f"{' '.join(recipe.sandbox.url) or 'of their own'}",
        flush=True,
    )
    os.environ["RAY_RUNTIME_ENV_HOOK"] = "retcon.plugins.verl.settings.add_environment"
    from verl.trainer import main_ppo

    main_ppo.main.__wrapped__(config)


if __name__ == "__main__":
    main()
