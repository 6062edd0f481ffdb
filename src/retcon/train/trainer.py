"""Training loop of all kinds of training: start, cost, checkpoints."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from retcon.chat.opening import template_for
from retcon.chat.template import MORE
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, TrainingDiverged
from retcon.models.devices import OnPlace, Placement, computing_of
from retcon.models.loading import load_model
from retcon.models.locating import model_folder, safetensors_as_os_error
from retcon.models.lora import CONFIG, WEIGHTS, Adapter
from retcon.models.placing import move_model, start_model
from retcon.runs.folder import Cost, Meter, RunFolder
from retcon.runs.tracking import tracking
from retcon.store.whole import whole_folder, write_json
from retcon.train.optim import adamw, torch_settings
from retcon.train.rollouts import EngineWeights

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

# Checkpoints: a Hugging Face folder with the state that training needs to go on exactly.
#
# If adapters are trained, a checkpoint holds these in peft's format, in place of the weights, which do not change.

MAX_KEPT = 2
TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", TEMPLATE, "chat_template.json",
)  # fmt: skip
STATE, ABOUT = "trainer.safetensors", "trainer.json"
NEEDED = ("tokenizer.json", STATE, ABOUT)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run. step: steps taken. drawn: prompts drawn in each stage, the data position of a run with
    rollouts. spent: its cost."""

    step: int = 0
    drawn: tuple[int, ...] = ()
    spent: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A model's files besides its weights. folder: that has them. template: the chat template of the training; empty
    for the folder's."""

    folder: Path
    template: str = ""

    def copy_to(self, folder: Path) -> None:
        for name in TOKENIZER_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)
        if self.template:
            (folder / TEMPLATE).write_text(self.template, encoding="utf-8")  # it goes before any other
        elif (self.folder / MORE).is_dir():
            shutil.copytree(self.folder / MORE, folder / MORE)


def save_model(model: PreTrainedModel, files: TokenizerFiles, out: Path, adapter: Adapter | None = None) -> None:
    """Write a model as a Hugging Face folder.

    It is there whole or not at all. adapter: those merged into `model`, for `out/adapter`. Raises StorageError if it
    cannot be written.
    """
    with whole_folder(out) as partial, safetensors_as_os_error():
        model.save_pretrained(partial)
        files.copy_to(partial)
        if adapter is not None:
            (partial / "adapter").mkdir()
            adapter.save(partial / "adapter")


def save_checkpoint(
    run: RunFolder,
    progress: Progress,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    *,
    files: TokenizerFiles,
    adapter: Adapter | None = None,
) -> Path:
    """Write the state after `progress.step` steps; keep one older checkpoint. adapter: trained in place of `model`.

    Raises StorageError if it cannot be written; every older checkpoint is then still there.
    """
    target = run.checkpoint(progress.step)
    with whole_folder(target) as partial, safetensors_as_os_error():
        if adapter is None:
            model.save_pretrained(partial)
        else:
            adapter.save(partial)
        files.copy_to(partial)
        save_file(_optimizer_tensors(model, optimizer), partial / STATE)
        write_json(partial / ABOUT, {"step": progress.step, "drawn": progress.drawn, **asdict(progress.spent)})
    for _, old in run.checkpoints()[MAX_KEPT:]:
        _remove(old)
    return target


def _remove(old: Path) -> None:
    """Remove a checkpoint, or only the link to one that was moved. Files that cannot be removed, as on a network disk
    while others read them, stay for the next time: no run ends for that."""
    if old.is_symlink():
        with suppress(OSError):
            old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)


def newest_checkpoint(run: RunFolder) -> Path | None:
    """Return the newest complete checkpoint, None without one."""
    for _, folder in run.checkpoints():
        if all((folder / name).is_file() for name in NEEDED) and _has_weights(folder):
            return folder
    return None


def _has_weights(folder: Path) -> bool:
    whole = (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
    return whole or all((folder / name).is_file() for name in (CONFIG, WEIGHTS))


@contextmanager
def checkpoint_errors(folder: Path) -> Iterator[None]:
    """Reraise errors of reading a checkpoint as CheckpointError, with advice."""
    try:
        yield
    except (
        CheckpointError,
        OSError,
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise CheckpointError(
            f"the checkpoint {folder} cannot be read ({error}): delete that folder and run the same command again, "
            "which goes on from the checkpoint before it, or from the start"
        ) from error


def read_progress(folder: Path) -> Progress:
    """Read the progress of a checkpoint. Raises CheckpointError for a broken file."""
    with checkpoint_errors(folder):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        spent = Cost(float(about["cpu_s"]), float(about["wall_s"]))
        drawn = about["drawn"]  # one number where there were no stages yet
        return Progress(int(about["step"]), tuple(map(int, drawn if isinstance(drawn, list) else [drawn])), spent)


def load_optimizer(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Load the saved state into `optimizer`, exactly. Raises CheckpointError if it cannot be read or does not fit."""
    parameters = dict(model.named_parameters())
    with checkpoint_errors(folder):
        for name, tensor in load_file(folder / STATE).items():
            key, _, parameter = name.partition("/")
            optimizer.state[parameters[parameter]][key] = tensor.to(parameters[parameter].device)


def _optimizer_tensors(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{key}/{name}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


LOG = logging.getLogger(__name__)
Metrics = Mapping[str, float | None]
OnStep = Callable[[Metrics], None]
WAITING = b"\nCtrl-C: this step is finished and kept first; once more ends at once\n"


class Steps(Protocol):
    """Common keys of training sections: steps and optimiser."""

    @property
    def steps(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def checkpoint_every(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Training:
    """A training. start: folder, or name, of the initial model. section: its section of the recipe. betas: AdamW's."""

    run: RunFolder
    recipe: Recipe
    place: Placement
    start: str | Path
    section: Steps
    betas: tuple[float, float] = (0.9, 0.999)


def train(
    training: Training,
    steps: Callable[[Trainer], None],
    *,
    first: Callable[[], None] = lambda: None,
    on_step: OnStep | None = None,
    on_place: OnPlace | None = None,
) -> Path:
    """Finish a run; return the folder of the final model, at once for a finished run. steps: takes this session's
    steps. first: called before the model is loaded, so that its memory is free by then. on_step gets each step's
    metrics, on_place the placement, before computing.

    Raises CheckpointError if another process has this run."""
    run, where = training.run, training.place
    if run.finished:
        LOG.info("%s is finished: nothing is trained any more", run.root)
        return run.final
    with run.at_work(), torch_settings(where), tracking(training.recipe, run.root) as track:
        run.note_place(where.line)
        if on_place is not None:
            on_place(where)
        first()

        def tell(metrics: Metrics) -> None:
            track(metrics)
            if on_step is not None:
                on_step(metrics)

        trainer = Trainer(training, tell)
        if trainer.step < training.section.steps:
            with name_checkpoint(run):
                steps(trainer)
        return trainer.finish()


@contextmanager
def name_checkpoint(run: RunFolder) -> Iterator[None]:
    """Name the newest checkpoint in the error of a diverged training."""
    try:
        yield
    except TrainingDiverged as error:
        kept = next((f"The checkpoint of step {step}, {folder}, is whole" for step, folder in run.checkpoints()), None)
        raise TrainingDiverged(
            f"{run.root} stopped at {error}. {kept or 'No checkpoint was made yet'}; the same command would come to "
            "the same point: lower the learning rate or max_grad_norm in another --out"
        ) from error


class Trainer:
    """Model, optimiser and step of a new or resumed run. step: steps done. drawn: their prompts, in each stage.
    computing: settings of its steps.

    The model is that of the newest checkpoint, or the initial one, on the device of its place; with the recipe's
    adapters in it, which then alone come from the checkpoint. Raises CheckpointError for a broken checkpoint.
    """

    def __init__(self, training: Training, on_step: OnStep) -> None:
        run, section = training.run, training.section
        self._run, self._recipe, self._place, self._start = run, training.recipe, training.place, training.start
        folder = model_folder(self._start)
        self._files = TokenizerFiles(folder, template_for(folder, training.recipe.model.style))
        self._every, self._on_step, self._betas = section.checkpoint_every, on_step, training.betas
        self.computing = computing_of(training.recipe.compute, training.place)
        checkpoint = newest_checkpoint(run)
        progress = Progress() if checkpoint is None else read_progress(checkpoint)
        self.step, self.drawn, spent = progress.step, list(progress.drawn), progress.spent
        # Steps that a kill undid count as cost too: it stands in their metrics lines, which are cut below.
        lines = run.read_metrics()
        spent = Cost(
            max(spent.cpu_s, *(line.get("cpu_s") or 0.0 for line in lines), 0.0),
            max(spent.wall_s, *(line.get("wall_s") or 0.0 for line in lines), 0.0),
        )
        self._meter = Meter(spent)
        self.model, self._adapter = self._load(checkpoint)
        self.optimizer = adamw(self.model, section.lr, weight_decay=section.weight_decay, betas=training.betas)
        if checkpoint is not None:
            load_optimizer(checkpoint, self.model, self.optimizer)
        self._saved = self.step
        self._interrupted = False
        run.cut(self.step)

    def _load(self, checkpoint: Path | None) -> tuple[PreTrainedModel, Adapter | None]:
        lora, seed, attention = self._recipe.lora, self._recipe.run.seed, self._place.attention
        if checkpoint is None or lora.rank:
            model = start_model(self._start, seed, attention)
        else:
            with checkpoint_errors(checkpoint):
                model = load_model(checkpoint, attention=attention)
        # Before the model moves, so that the adapters' first weights are the same on every device.
        adapter = Adapter(model, lora, seed=seed) if lora.rank else None
        move_model(model, self._place.device)
        if adapter is not None and checkpoint is not None:
            with checkpoint_errors(checkpoint):
                adapter.load(checkpoint)
        return model, adapter

    def begin(self, section: Steps, *, anew: bool) -> None:
        """Begin or resume a stage, with its weight decay. anew: whether to drop the optimiser's moments."""
        before = self.optimizer.state
        self.optimizer = adamw(self.model, section.lr, weight_decay=section.weight_decay, betas=self._betas)
        if not anew:
            self.optimizer.state.update(before)

    def reference(self) -> PreTrainedModel:
        """Return π_ref: the initial model, loaded once more, without gradients."""
        place = self._place
        return start_model(self._start, self._recipe.run.seed, place.attention, place.device).requires_grad_(False)

    def engine_weights(self) -> EngineWeights:
        """Return the weights for an engine."""
        return EngineWeights(self.model, getattr(torch, self._place.rollout_dtype), self._adapter)

    def to_come(self) -> int:
        """Return the bytes of the optimiser's state to come: two moments of all trained weights, which AdamW makes in
        the first step. Gradients exist only within a step, without rollouts."""
        if self.optimizer.state:
            return 0
        return 2 * sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)

    def history(self) -> list[dict[str, float | None]]:
        """Return the metrics of all steps so far, earlier sessions included."""
        return self._run.read_metrics()

    @property
    def cost(self) -> Cost:
        """Cost of the run so far, to the millisecond."""
        cost = self._meter.read()
        return Cost(round(cost.cpu_s, 3), round(cost.wall_s, 3))

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """Stop the run's meter for a block."""
        with self._meter.stopped():
            yield

    def done(
        self, metrics: Metrics, *, drawn: int = 0, stage: int = 1, cost: Cost | None = None
    ) -> dict[str, float | None]:
        """Finish a step: log it, save a checkpoint if due, call `on_step`; return its line in metrics.jsonl. drawn: its
        prompts, in a stage (from 1). cost: of the run by then, None for now."""
        self.step += 1
        self.drawn += [0] * (stage - len(self.drawn))
        self.drawn[stage - 1] += drawn
        cost = cost or self.cost
        line: dict[str, float | None] = {"step": self.step, **metrics, "cpu_s": cost.cpu_s, "wall_s": cost.wall_s}
        self._run.log(line)
        if self.step % self._every == 0:
            self.save()
        self._on_step(line)
        if self._interrupted:
            self.save()
            raise KeyboardInterrupt
        return line

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Delay a first Ctrl-C to the step's end, for a block.

        It prints a notice; a second one ends at once. Does nothing outside the main thread, where signals do not
        arrive, nor if this one is ignored, as in a script's background jobs.
        """
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        if ignored or threading.current_thread() is not threading.main_thread():
            yield
            return

        def wait(*_: object) -> None:
            self._interrupted = True
            signal.signal(signal.SIGINT, signal.default_int_handler)  # an event loop's own would wait for an await
            with suppress(OSError):
                os.write(2, WAITING)  # the interrupted code may be within a print

        before = signal.signal(signal.SIGINT, wait) or signal.SIG_DFL
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def save(self) -> None:
        """Save a checkpoint of the steps done, unless there is one. Only between steps."""
        if self._saved != self.step:
            self._run.keep_metrics()
            progress = Progress(self.step, tuple(self.drawn), self.cost)
            save_checkpoint(self._run, progress, self.model, self.optimizer, files=self._files, adapter=self._adapter)
            self._saved = self.step

    def finish(self) -> Path:
        """Save the last checkpoint and the final model; return its folder. Adapters are merged into it, and also in
        `final/adapter`."""
        self.save()
        save_model(
            EngineWeights(self.model, torch.float32, self._adapter).model,
            self._files,
            self._run.final,
            self._adapter,
        )
        return self._run.final
