"""Tasks from data: files, data sets of the hub, other task sets (`retcon.tasks.data`, docs/data/problems.md)."""

from __future__ import annotations

from retcon.config.schema import TaskSection
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.registry import CountTokens


class File(FileTaskSettings, TaskSection):
    """Section [task] of kind `file`."""

    def build(self, count_tokens: CountTokens | None = None) -> DataTasks:
        return self.open(count_tokens)
