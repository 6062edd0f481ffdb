"""What the commands that train or decode import first."""

from __future__ import annotations

import gc

from retcon.cli.common.arguments import need_training


def import_training() -> None:
    """Import torch and transformers with the garbage collector at rest, and set what they leave aside (`gc.freeze`).

    That is some 400,000 objects which never go. To pass through them again and again takes a seventh of the imports'
    time, and each full collection .2 s from then on. For the process of a command alone: what was set aside is never
    collected. Raises MissingExtra (see `need_training`).
    """
    need_training()
    gc.disable()
    try:
        import transformers.modeling_utils  # noqa: F401 - and with it torch, and what all models share
    finally:
        gc.enable()
    gc.freeze()
