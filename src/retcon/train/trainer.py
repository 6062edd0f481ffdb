"""A training, whatever it learns from: where it starts, what it has cost, and how its steps are kept."""

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
from retcon.models.devices import OnPlace, Placement
from retcon.models.loading import load_model
from retcon.models.locating import as_os_error, model_folder
from retcon.models.lora import CONFIG, WEIGHTS, Adapter
from retcon.models.placing import move, start_model
from retcon.runs.folder import Cost, Meter, RunFolder
from retcon.runs.tracking import tracking
from retcon.store.whole import whole_folder, write_json
from retcon.train.kernels.computing import computing_of
from retcon.train.optim import adamw, torch_settings
from retcon.train.sync import EngineWeights

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

# Checkpoints: a Hugging Face folder that anything loads, with the state that training needs to go on exactly.
#
# Where adapters are trained, a checkpoint holds these in peft's format, in place of the weights, which do not change.

KEPT = 2
TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", TEMPLATE, "chat_template.json",
)  # fmt: skip
STATE, ABOUT = "trainer.safetensors", "trainer.json"
NEEDED = ("tokenizer.json", STATE, ABOUT)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come. step: steps taken. drawn: prompts drawn in each stage so far, the data position of a run
    that rolls out. spent: what it cost."""

    step: int = 0
    drawn: tuple[int, ...] = ()
    spent: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What belongs to a model besides its weights. folder: that has them. template: the chat template that the model
    learns to be asked through; empty for that of the folder."""

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
    """`model` as a Hugging Face folder `out`, whole or not at all.

    adapter: which were merged into `model`, for `out/adapter`. Raises StorageError where it cannot be written.
    """
    with whole_folder(out) as partial, as_os_error():
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
    """The state after `progress.step` steps; of older checkpoints the newest is kept beside it. adapter: what is
    trained, where that is not `model`.

    Raises StorageError where it cannot be written; every older checkpoint is then still there.
    """
    target = run.checkpoint(progress.step)
    with whole_folder(target) as partial, as_os_error():
        if adapter is None:
            model.save_pretrained(partial)
        else:
            adapter.save(partial)
        files.copy_to(partial)
        save_file(_optimizer_tensors(model, optimizer), partial / STATE)
        write_json(partial / ABOUT, {"step": progress.step, "drawn": progress.drawn, **asdict(progress.spent)})
    for _, old in run.checkpoints()[KEPT:]:
        _let_go(old)
    return target


def _let_go(old: Path) -> None:
    """Remove a checkpoint; of one that was moved elsewhere, the link alone. What a disk does not give up, as a
    network's while somebody reads it, stays for the next time: no run ends for that."""
    if old.is_symlink():
        with suppress(OSError):
            old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)


def newest_checkpoint(run: RunFolder) -> Path | None:
    """The newest checkpoint that has all of its files; None where there is none."""
    for _, folder in run.checkpoints():
        if all((folder / name).is_file() for name in NEEDED) and _has_weights(folder):
            return folder
    return None


def _has_weights(folder: Path) -> bool:
    whole = (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
    return whole or all((folder / name).is_file() for name in (CONFIG, WEIGHTS))


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Name the checkpoint whose files cannot be read, and what to do, in a CheckpointError."""
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
    """How far the checkpoint's run had come. Raises CheckpointError for a broken file."""
    with reading(folder):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        spent = Cost(float(about["cpu_s"]), float(about["wall_s"]))
        drawn = about["drawn"]  # one number where there were no stages yet
        return Progress(int(about["step"]), tuple(map(int, drawn if isinstance(drawn, list) else [drawn])), spent)


def load_optimizer(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Put the saved state into `optimizer`, exactly. Raises CheckpointError where it cannot be read or does not fit."""
    parameters = dict(model.named_parameters())
    with reading(folder):
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
    """What sections of trainings have in common: their steps, and their optimiser."""

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
    """What a training is. start: the folder, or name, of the model that it starts from. section: its own of the recipe.
    betas: AdamW's."""

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
    """Takes a run to its end; returns the folder of the final model, at once where the run is finished. steps: takes
    the steps that a session has before it. first: done before the model is loaded, so that what it needs is not in
    memory beside it. on_step gets each step's metrics, on_place where it computes, before it does.

    Raises CheckpointError where another process is at this run."""
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
            with naming_what_is_kept(run):
                steps(trainer)
        return trainer.finish()


@contextmanager
def naming_what_is_kept(run: RunFolder) -> Iterator[None]:
    """A training that diverges within says from where it can be taken up again."""
    try:
        yield
    except TrainingDiverged as error:
        kept = next((f"The checkpoint of step {step}, {folder}, is whole" for step, folder in run.checkpoints()), None)
        raise TrainingDiverged(
            f"{run.root} stopped at {error}. {kept or 'No checkpoint was made yet'}; the same command would come to "
            "the same point: lower the learning rate or max_grad_norm in another --out"
        ) from error


class Trainer:
    """Model, optimiser and step of a run that begins or goes on. step: steps done. drawn: prompts that they drew, in
    each stage. computing: how its steps are computed.

    The model is that of the newest checkpoint, or the one that the training starts from, on the device of its place;
    with the recipe's adapters in it, which then alone come from the checkpoint. Raises CheckpointError for a checkpoint
    that is broken.
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
        # Steps that a kill undid were paid for all the same: their metrics lines, soon cut, know how much.
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
            with reading(checkpoint):
                model = load_model(checkpoint, attention=attention)
        # Before the model moves, so that the adapters' first weights are the same on every device.
        adapter = Adapter(model, lora, seed=seed) if lora.rank else None
        move(model, self._place.device)
        if adapter is not None and checkpoint is not None:
            with reading(checkpoint):
                adapter.load(checkpoint)
        return model, adapter

    def begin(self, section: Steps, *, anew: bool) -> None:
        """A stage begins, or goes on: its own decay of weights, and no moments of steps before where it is to begin
        `anew`."""
        before = self.optimizer.state
        self.optimizer = adamw(self.model, section.lr, weight_decay=section.weight_decay, betas=self._betas)
        if not anew:
            self.optimizer.state.update(before)

    def reference(self) -> PreTrainedModel:
        """π_ref: the model that the training started from, loaded once more, without gradients."""
        place = self._place
        return start_model(self._start, self._recipe.run.seed, place.attention, place.device).requires_grad_(False)

    def engine_weights(self) -> EngineWeights:
        """What an engine decodes with."""
        return EngineWeights(self.model, getattr(torch, self._place.rollout_dtype), self._adapter)

    def to_come(self) -> int:
        """Bytes of the optimiser's state, two moments of all that is trained, which AdamW makes in the first step only;
        0 once they are there. Gradients come and go within a step, when no rollouts are made."""
        if self.optimizer.state:
            return 0
        return 2 * sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)

    def history(self) -> list[dict[str, float | None]]:
        """The metrics of all steps so far, those of earlier sessions among them."""
        return self._run.read_metrics()

    @property
    def cost(self) -> Cost:
        """What the run has cost so far, to the millisecond, as its metrics tell it."""
        cost = self._meter.read()
        return Cost(round(cost.cpu_s, 3), round(cost.wall_s, 3))

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """What is done within does not count as what the run cost."""
        with self._meter.stopped():
            yield

    def done(
        self, metrics: Metrics, *, drawn: int = 0, stage: int = 1, cost: Cost | None = None
    ) -> dict[str, float | None]:
        """A step is over, which drew `drawn` prompts in a stage (from 1): log it, checkpoint if it is time, tell
        `on_step`. cost: of the run by then, as of now where None. Returns its line in metrics.jsonl."""
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
        """Within, a first Ctrl-C waits for the end of the step and its checkpoint, and says so; a second one does not.

        Does nothing outside the main thread, where signals do not arrive, nor where this one is ignored, as in what a
        script runs behind itself.
        """
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        if ignored or threading.current_thread() is not threading.main_thread():
            yield
            return

        def wait(*_: object) -> None:
            self._interrupted = True
            signal.signal(signal.SIGINT, signal.default_int_handler)  # an event loop's own would wait for an await
            with suppress(OSError):
                os.write(2, WAITING)  # a print of what was interrupted may be under way

        before = signal.signal(signal.SIGINT, wait) or signal.SIG_DFL
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def save(self) -> None:
        """A checkpoint of the steps done, unless there is one. Only between steps."""
        if self._saved != self.step:
            self._run.keep_metrics()
            progress = Progress(self.step, tuple(self.drawn), self.cost)
            save_checkpoint(self._run, progress, self.model, self.optimizer, files=self._files, adapter=self._adapter)
            self._saved = self.step

    def finish(self) -> Path:
        """The run is over: its last checkpoint, and the model in the run's `final` folder, which is returned. Adapters
        are merged into it, and lie in `final/adapter` besides."""
        self.save()
        save_model(
            EngineWeights(self.model, torch.float32, self._adapter).model,
            self._files,
            self._run.final,
            self._adapter,
        )
        return self._run.final
