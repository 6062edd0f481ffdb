"""What the commands that train or decode import first."""

from __future__ import annotations

import gc


def import_training() -> None:
    """Import torch and transformers, and set what they made aside for good (`gc.freeze`).

    They leave some 400,000 objects that the garbage collector tracks and that never go: to pass through these again
    and again takes a seventh of the time of the imports, and then of all that the process does. For processes of a
    command only: what was set aside is never collected. See `need_training` for where they are not installed.
    """
    gc.disable()
    try:
        import transformers.modeling_utils  # noqa: F401 - and with it torch, and what all models share
    finally:
        gc.enable()
    gc.freeze()
