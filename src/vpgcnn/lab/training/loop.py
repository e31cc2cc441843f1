"""The training loop. Every random choice is a function of the seed and the step, so a run can stop anywhere.

One process or many take the same steps: `batch_size` counts the images of all processes, batch statistics are taken
over all of them, and random choices are drawn for all of them. (The batch norms of plain and converted networks are
torch's own: their statistics stay those of one process.)
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from vpgcnn._ops.distributed import is_distributed
from vpgcnn.errors import NotFiniteError, UserError
from vpgcnn.lab.config_io import from_json, read_json, to_json
from vpgcnn.lab.data import Dataset, Split, load
from vpgcnn.lab.data.autoaugment import autoaugmented
from vpgcnn.lab.networks import Policy, count_parameters, in_words, to_unit
from vpgcnn.lab.training.batches import Batches
from vpgcnn.lab.training.checkpoint import (
    Card,
    load_weights,
    optimiser_tensors,
    part_of,
    read_tensors,
    restore_optimiser,
    save_model,
    started,
)
from vpgcnn.lab.training.checks import (
    check_numbers,
    check_reweighing,
    check_search,
    check_settings,
    check_size,
    check_threads,
)
from vpgcnn.lab.training.config import Objective, TrainConfig
from vpgcnn.lab.training.optimisers import make_optimiser, parts_of, rate_factor, settings_of
from vpgcnn.lab.training.progress import Quiet, in_bytes, in_time, peak_memory
from vpgcnn.lab.training.reweighing import Reweighing, held_out
from vpgcnn.lab.training.run import Run, chosen_weights
from vpgcnn.lab.training.search import load_policy, search_policy
from vpgcnn.lab.training.seeds import generator, seed_of
from vpgcnn.lab.training.trackers import open_tracker
from vpgcnn.levels import VariationalLevel, set_progress
from vpgcnn.measure import idle_levels, read_levels
from vpgcnn.nn import fixed_paths
from vpgcnn.nn.norm import synchronise
from vpgcnn.objective import Elbo, Price, dual_step, log_shares, penalty

__all__ = ["Interrupted", "ThetaByClass", "evaluate", "make_card", "restart_warning", "train"]

FEW_STEPS = 500
"""On 1,080 digits, θ was in the right order after 700 steps and not after 300."""
LOOKED_AT = 500
"""Images, at most, that tell whether a level does anything."""


class Interrupted(Exception):  # noqa: N818
    """Training stopped on request; its state is saved."""


class StopSignal(AbstractContextManager["StopSignal"]):
    """Catches Ctrl-C and SIGTERM for the length of a `with` block, so that the current step can finish.

    `received` says whether one came. A second signal stops at once.
    """

    def __init__(self) -> None:
        self.received = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._handlers[number] = signal.signal(number, self._receive)
            except ValueError:  # not the main thread, which alone may handle signals
                break
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def make_card(config: TrainConfig, dataset: Dataset) -> Card:
    """The card of the network that this configuration trains on these data."""
    images = dataset.channels, dataset.size, (dataset.mean,), (dataset.std,)
    return Card(config.model, dataset.classes, *images, dataset.name, config.augmenter)


class ThetaByClass:
    """The mean of θ in each layer and class, over all processes.

    Args:
        classes: Number of classes.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._sums: dict[str, Tensor] = {}

    def add(self, theta: dict[str, Tensor], labels: Tensor) -> None:
        """Add the θ of some images, `(B, K)`, or `(1, K)` where it is the same for all."""
        images = torch.ones(len(labels), device=labels.device)
        for layer, values in theta.items():
            if len(values) not in (1, len(labels)):
                continue
            pair = torch.stack([values.float().mean(dim=1).expand(len(labels)), images], dim=1)
            sums = self._sums.setdefault(layer, pair.new_zeros(self._classes, 2))
            sums.index_add_(0, labels, pair)

    def means(self, accelerator: Accelerator) -> dict[str, list[float | None]]:
        """Layer → the mean of each class; None for a class without images."""
        found = {}
        for layer, sums in self._sums.items():
            totals, counts = accelerator.reduce(sums, "sum").T.tolist()
            pairs = zip(totals, counts, strict=True)
            found[layer] = [round(total / count, 4) if count else None for total, count in pairs]
        return found


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, accelerator: Accelerator, batch: int = 256, theta: ThetaByClass | None = None
) -> dict[str, float]:
    """Test a network on a part of the data, with the images shared among all processes.

    Args:
        model: Images in [0, 1] to a `Prediction`. It is left in evaluation mode.
        split: Images and labels.
        accelerator: Device and processes.
        batch: Images at a time.
        theta: If given, takes note of θ.

    Returns:
        accuracy, nll and kl (in nats) and unused, each the mean per image, and the number of images.
    """
    if not len(split):
        return {"images": 0}
    model.eval()
    sums = torch.zeros(4, dtype=torch.float32, device=accelerator.device)
    mine = torch.arange(len(split))[accelerator.process_index :: accelerator.num_processes]
    for index in mine.split(batch) if len(mine) else ():
        images, labels = to_unit(split.images[index].to(accelerator.device)), split.labels[index]
        labels = labels.to(accelerator.device)
        with accelerator.autocast():
            prediction = model(images)
        elbo = Elbo.of(prediction, labels)
        if theta is not None:
            theta.add(prediction.theta, labels)
        right = (prediction.logits.argmax(dim=1) == labels).sum()
        unused = torch.as_tensor(elbo.unused, device=right.device)
        sums += torch.stack([right, elbo.nll * len(index), elbo.kl * len(index), unused * len(index)]).float()
    right, nll, kl, unused_share = (accelerator.reduce(sums, "sum") / len(split)).tolist()
    if not math.isfinite(nll + kl):
        raise UserError(f"the network's answers are not finite (nll {nll}, kl {kl}): lower optimiser.lr")
    return {"accuracy": right, "nll": nll, "kl": kl, "unused": unused_share, "images": len(split)}


def train(config: TrainConfig, out: Path, *, resume: bool = False, progress: Quiet | None = None) -> dict[str, Any]:
    """Train a network, keep everything in a folder, and test the selected epoch.

    Args:
        config: Data, network, objective, optimisers.
        out: The run's folder; see `vpgcnn.lab.training.run` for its files.
        resume: Continue the run in that folder, or start it if there is none.
        progress: Where messages go; nowhere by default.

    Returns:
        The content of result.json.

    Raises:
        Interrupted: On Ctrl-C or SIGTERM, after the state is saved.
        UserError: If a setting, the data or the folder is unusable, or the loss is not finite.
    """
    check_numbers(config, "")
    check_threads(config.threads)
    if config.threads > 0:
        torch.set_num_threads(config.threads)
    with fixed_paths():  # the same command gives the same bits, whichever algorithm is faster just now
        return _Training(config, out, make_accelerator(config), progress or Quiet()).go(resume)


def make_accelerator(config: TrainConfig) -> Accelerator:
    """The accelerator of one run. accelerate keeps its settings for the whole process, so they are reset first."""
    if config.precision == "fp16" and (config.device == "cpu" or not torch.cuda.is_available()):
        raise UserError("precision fp16 needs a CUDA device: use bf16")
    AcceleratorState._reset_state(reset_partial_state=not is_distributed())
    # Without a GPU, several processes find each other only if `cpu` is set.
    cpu = config.device == "cpu" or not torch.accelerator.is_available()
    return Accelerator(mixed_precision=config.precision, cpu=cpu)


def restart_warning(environment: Mapping[str, str]) -> str:
    """What is to be said if torchrun is to restart workers but shares its store with them; "" otherwise.

    Restarted workers may then read addresses of those before them (pytorch issues 135712 and 167288).
    """
    restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts == "0" or environment.get("TORCHELASTIC_USE_AGENT_STORE", "False") != "True":
        return ""
    return "torchrun may not restart killed workers: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun"


class _Training:
    """One run, from its configuration to its result."""

    def __init__(self, config: TrainConfig, out: Path, accelerator: Accelerator, progress: Quiet) -> None:
        check_settings(config, accelerator.num_processes)
        self.config, self.accelerator, self.run = config, accelerator, Run(out, config)
        self.main = accelerator.is_main_process
        self.progress = progress if self.main else Quiet()

    def go(self, resume: bool) -> dict[str, Any]:
        if self.main:
            self.run.check(resume)
        if warning := restart_warning(os.environ):
            self.progress.message(warning)
        self._prepare()
        try:
            if self.main:
                self.run.begin()
            self.accelerator.wait_for_everyone()
            return self._run()
        finally:
            self.run.end()

    def _run(self) -> dict[str, Any]:
        if self.run.result.exists():
            done: dict[str, Any] = read_json(self.run.result)
            self._check_data(done.get("fingerprint"))
            self.progress.message(f"{self.run.folder} is already finished")
            return done
        self._restore()
        kind = self.config.track if self.main else "none"
        self.tracker = open_tracker(kind, self.run.folder, self.config, self.step)
        with StopSignal() as stop, self.progress, self.tracker:
            if self.config.augmenter.kind == "policy":
                self._search(stop)
            self.progress.begin("training", self.total, self.step)
            while self.step < self.total:
                self._one_step(stop)
                if self.step % self.per_epoch == 0:
                    self._end_epoch()
                elif self.stopping or time.monotonic() - self.saved_at > self.config.save_seconds:
                    self._save()
                if self.stopping:
                    raise Interrupted(f"stopped after step {self.step} of {self.total}, saved in {self.run.folder}")
            return self._test()

    # ------------------------------------------------------------ set-up

    def _prepare(self) -> None:
        config = self.config
        self.data = load(config.data, config.data_dir)
        for note in self.data.notes:
            self.progress.message(f"data: {note}")
        train, validation, test = len(self.data.train), len(self.data.validation), len(self.data.test)
        self.progress.message(f"images: {train} for training, {validation} for validation, {test} for the test")
        self.card = make_card(config, self.data)
        trained, held = self.data.train, None
        if config.augmenter.kind == "reweighted":
            check_reweighing(config, train, self.accelerator.num_processes)
            held, trained = held_out(trained, config)
        self.batches = Batches(trained, config, self.card, size=config.batch_size)
        self.per_epoch = self.batches.per_epoch
        if self.per_epoch == 0:
            raise UserError(
                f"batch_size is {config.batch_size}, but there are only {train} training images: --batch-size {train}"
            )
        self.total = self.per_epoch * config.epochs
        if config.augmenter.kind == "policy":
            check_search(config, train)
        if not len(self.data.validation) and config.select != "last":
            raise UserError(f"there are no validation images to select by {config.select}: --select last does without")
        self.fingerprint = self.data.fingerprint()
        torch.manual_seed(seed_of(config.seed, "weights"))
        if config.start_from is None:
            model = self.card.build()
        else:
            model, message = started(self.card, chosen_weights(config.start_from))
            self.progress.message(message)
        check_size(model, self.card)
        self.parameters = count_parameters(model)
        self.progress.message(f"network: {in_words(config.model)}, {self.parameters:,} parameters")
        if self.accelerator.num_processes > 1:
            synchronise(model)
            if any(isinstance(part, nn.BatchNorm2d) for part in model.modules()):
                self.progress.message("batch statistics of this network are those of each process by itself")
        parts, self.settings = parts_of(model), settings_of(config)
        self.plain = model
        self.names = {part: [name for name, _ in members] for part, members in parts.items()}
        optimisers = [
            make_optimiser([parameter for _, parameter in members], self.settings[part])
            for part, members in parts.items()
        ]
        self.model, *prepared = self.accelerator.prepare(model, *optimisers)
        self.optimisers = dict(zip(self.names, prepared, strict=True))
        self.objective: Objective = config.objective
        shares = log_shares(self.data.train.labels, len(self.data.classes)).to(self.accelerator.device)
        self.prior = config.balance * shares if config.balance else None
        self.step, self.elapsed, self.best = 0, 0.0, None  # type: int, float, dict[str, Any] | None
        self.epoch_sums, self.log_sums = [0.0] * 4, [0.0] * 4
        self.stopping = False
        self.policy: Policy | None = None
        self.searched: dict[str, Any] = {}
        self.reweighing: Reweighing | None = None
        if held is not None:
            device = self.accelerator.device
            self.reweighing = Reweighing(self.plain, held, config, self.card, device, self.prior)
        self.saved_at = self.timed_at = time.monotonic()

    def _restore(self) -> None:
        saved = self.run.load_state()
        self._check_data(None if saved is None else saved[1].get("data"))
        if self.main:
            self.run.rewind(None if saved is None else saved[1])
        if saved is None:
            return
        tensors, metadata = saved
        parts = {key: part_of(tensors, key) for key in ("model", *self.names)}
        load_weights(self.plain, parts["model"], self.run.state)
        for part, optimiser in self.optimisers.items():
            restore_optimiser(optimiser.optimizer, self.names[part], parts[part])
        if self.reweighing is not None:
            self.reweighing.restore(tensors, self.run.state)
        self.step, self.elapsed, self.best = metadata["step"], metadata["elapsed"], metadata["best"]
        self.epoch_sums, self.log_sums = metadata["epoch_sums"], metadata["log_sums"]
        self.objective = from_json(type(self.config.objective), metadata["objective"], "objective")
        if self.accelerator.scaler is not None and metadata["scaler"]:
            self.accelerator.scaler.load_state_dict(metadata["scaler"])
        self.progress.message(f"resuming after step {self.step} of {self.total}")

    def _search(self, stop: StopSignal) -> None:
        """Search for a policy, or load the one that is there. All processes do the same search; one of them writes."""
        device = self.accelerator.device

        def stopping() -> bool:
            mine = torch.tensor(float(stop.received), device=device)
            return bool(self.accelerator.reduce(mine, "sum") > 0)

        found = search_policy(
            self.config, self.data, self.card, self.run.folder, device,
            progress=self.progress, stopping=stopping, prior=self.prior, write=self.main,
        )  # fmt: skip
        self.accelerator.wait_for_everyone()
        if not found:
            raise Interrupted(f"stopped while searching for a policy, saved in {self.run.folder}")
        self.policy, self.searched = load_policy(
            self.run.folder / "policy.safetensors", self.card, self.fingerprint, device
        )
        self.timed_at = time.monotonic()

    def _check_data(self, fingerprint: str | None) -> None:
        if fingerprint not in (None, self.fingerprint):
            raise UserError(f"{self.run.folder} was started with other data than these: {self.data.notes[0]}")

    # ------------------------------------------------------------ a step

    def _one_step(self, stop: StopSignal) -> None:
        config, weight = self.config, self.objective.at(self._progress)
        images, labels = self._batch()
        factor = rate_factor(self.step, self.total, config.warmup, config.final)
        for part, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = self.settings[part].lr * factor
        weights = None
        if self.reweighing is not None:
            images, weights = self.reweighing.advance(self.plain, images, labels, self.step, factor)
        torch.manual_seed(seed_of(config.seed, "step", self.step))
        self.model.train()
        set_progress(self.plain, self._progress)
        try:
            with self.accelerator.autocast():
                prediction = self.model(images)
        except NotFiniteError as error:
            raise UserError(f"weights are not finite after step {self.step}: lower optimiser.lr") from error
        elbo = Elbo.of(prediction, labels, self.prior, weights)
        self.accelerator.backward(self.objective.loss(elbo, self._progress) + penalty(self.plain))
        if config.clip > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), config.clip)
        for optimiser in self.optimisers.values():
            optimiser.step()
            optimiser.zero_grad()
        dual_step(self.plain)
        right = (prediction.logits.detach().argmax(dim=1) == labels).float().mean()
        asked = right.new_tensor(float(stop.received))
        means = torch.stack([elbo.nll.detach(), elbo.kl.detach(), right, asked])
        nll, kl, accuracy, stopping = self.accelerator.reduce(means, "mean").tolist()
        if not math.isfinite(nll + kl):
            raise UserError(
                f"the loss is not finite after step {self.step + 1} (nll {nll}, kl {kl}): lower optimiser.lr"
            )
        self.stopping = stopping > 0
        self.objective = self.objective.after(nll=nll, kl=kl)
        self.step += 1
        for sums in (self.epoch_sums, self.log_sums):
            for place, value in enumerate((nll, kl, accuracy, 1.0)):
                sums[place] += value
        if config.log_steps and self.step % config.log_steps == 0:
            line = {"step": self.step, "steps": self.total, "lambda": weight, **_means(self.log_sums)}
            self._log(line | {"seconds": round(self.elapsed + time.monotonic() - self.timed_at, 1)})
            self.log_sums = [0.0] * 4
        self.progress.advance(1, f"nll {nll:.3f} kl {kl:.3f}")

    @property
    def _progress(self) -> float:
        """How far training has come, from 0 to 1."""
        return self.step / max(1, self.total - 1)

    def _batch(self) -> tuple[Tensor, Tensor]:
        """This process's part of the batch."""
        whole = self.config.batch_size
        count = whole // self.accelerator.num_processes
        part = slice(self.accelerator.process_index * count, (self.accelerator.process_index + 1) * count)
        images, labels = self.batches.at(self.step, self.accelerator.device, part)
        if self.policy is not None:
            draws = torch.rand(whole, 3, generator=generator(self.config.seed, "policy", self.step))[part]
            images = self.policy(images, labels, draws.to(images))
        if self.config.augmenter.kind == "autoaugment":
            chance = generator(self.config.seed, "autoaugment", self.step)
            images = autoaugmented(images, chance, part, whole)
        return images, labels

    # ------------------------------------------------------------ between steps

    def _end_epoch(self) -> None:
        epoch = self.step // self.per_epoch
        training = {f"train_{key}": value for key, value in _means(self.epoch_sums).items()}
        self.epoch_sums = [0.0] * 4
        if self.reweighing is not None:
            self.reweighing.weigher.redraw()
        # With fewer images than processes some would have no layers to tell of.
        count = len(self.data.validation)
        theta = ThetaByClass(len(self.data.classes)) if count >= self.accelerator.num_processes else None
        scores = evaluate(self.plain, self.data.validation, self.accelerator, theta=theta)
        levels = {} if theta is None else theta.means(self.accelerator)
        self._clock()
        line: dict[str, Any] = {"epoch": epoch, "step": self.step, "steps": self.total, **training}
        line["lambda"] = self.objective.at(self._progress)
        line |= {f"validation_{key}": value for key, value in scores.items()} | {"seconds": round(self.elapsed, 1)}
        line |= {"theta": levels} if levels else {}
        memory = peak_memory(self.accelerator.device)
        line |= {} if memory is None else {"memory": memory}
        if self.config.watch and self.main:
            line["levels"] = self._watched()
        self._log(line)
        metadata = {"epoch": epoch, "validation": scores}
        if scores["images"] and (self.best is None or self._better(scores, self.best["validation"])):
            self.best = metadata
            if self.main:
                save_model(self.run.best, self.plain, self.card, metadata)
        if self.main:
            save_model(self.run.last, self.plain, self.card, metadata)
        self._save()
        validation = ""
        if scores["images"]:
            counts = "unused" if isinstance(self.objective, Price) else "kl"  # the term of the loss beside the nll
            validation = (
                f"validation {scores['accuracy']:.2%}, nll {scores['nll']:.4f}, {counts} {scores[counts]:.3f}, "
            )
        trained = f"train {training['train_accuracy']:.2%}"
        left = self.elapsed / self.step * (self.total - self.step)
        resources = [in_time(self.elapsed), *([f"{in_time(left)} left"] if self.step < self.total else [])]
        resources += [] if memory is None else [in_bytes(memory)]
        self.progress.message(
            f"epoch {epoch:>3} of {self.config.epochs}: {trained}, {validation}{', '.join(resources)}"
        )

    def _watched(self) -> dict[str, dict[str, list[list[float]]]]:
        """The weights of the levels for a few validation images: as in evaluation, and as training samples them."""
        few = self.data.validation.images[: self.config.watch].to(self.accelerator.device)
        torch.manual_seed(seed_of(self.config.seed, "watch", self.step))
        kinds = {"evaluated": False, "drawn": True}
        found = {kind: read_levels(self.plain, few, sampled=d).weights for kind, d in kinds.items()}
        return {
            kind: {name: [[round(w, 4) for w in image] for image in weights.tolist()] for name, weights in each.items()}
            for kind, each in found.items()
        }

    def _better(self, new: dict[str, float], old: dict[str, float]) -> bool:
        return new["nll"] <= old["nll"] if self.config.select == "nll" else new["accuracy"] >= old["accuracy"]

    def _clock(self) -> None:
        now = time.monotonic()
        self.elapsed, self.timed_at = self.elapsed + now - self.timed_at, now

    def _log(self, line: dict[str, Any]) -> None:
        if self.main:
            self.run.log(line)
            self.tracker.log(line, self.data.classes)

    def _save(self) -> None:
        self._clock()
        tensors = {f"model/{key}": value for key, value in self.plain.state_dict().items()}
        for part, optimiser in self.optimisers.items():
            state = optimiser_tensors(optimiser.optimizer, self.names[part])
            tensors |= {f"{part}/{key}": value for key, value in state.items()}
        if self.reweighing is not None:
            tensors |= self.reweighing.tensors()
        scaler = None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict()
        metadata = {"step": self.step, "elapsed": self.elapsed, "best": self.best, "scaler": scaler}
        metadata |= {"epoch_sums": self.epoch_sums, "log_sums": self.log_sums}
        metadata |= {"objective": to_json(self.objective), "data": self.fingerprint}
        if self.main:
            self.run.save_state(tensors, metadata)
        self.accelerator.wait_for_everyone()
        self.saved_at = time.monotonic()

    def _test(self) -> dict[str, Any]:
        path = chosen_weights(self.run.folder)
        tensors, metadata = read_tensors(path)
        load_weights(self.plain, tensors, path)
        scores = evaluate(self.plain, self.data.test, self.accelerator)
        result = {"epoch": metadata["epoch"], "validation": metadata["validation"], "test": scores}
        result |= {"parameters": self.parameters, "steps": self.step, "seconds": round(self.elapsed, 1)}
        result |= {"data": list(self.data.notes), "fingerprint": self.fingerprint}
        if self.searched:
            result["seconds"] = round(self.elapsed + self.searched["elapsed"], 1)
            result["search_steps"] = self.searched["step"]
        if self.reweighing is not None:
            result["moves"] = [round(chance, 4) for chance in self.reweighing.weigher.chances.tolist()]
        if self.main:
            result["idle"] = self._idle()
            for sentence in result["idle"]:
                self.progress.message(f"levels: {sentence}")
            self.run.finish(result)
        self.accelerator.wait_for_everyone()
        return result

    def _idle(self) -> list[str]:
        """What is to be said about levels that do nothing."""
        if not any(isinstance(part, VariationalLevel) for part in self.plain.modules()):
            return []
        split = self.data.validation if len(self.data.validation) else self.data.train
        images = split.images[torch.linspace(0, len(split) - 1, min(len(split), LOOKED_AT)).long()]
        found = idle_levels(read_levels(self.plain, images))
        if self.total < FEW_STEPS:
            found.append(f"{self.total} steps are few for levels to settle: read θ with care, or train for longer")
        return found


def _means(sums: list[float]) -> dict[str, float]:
    nll, kl, accuracy, count = sums
    return {"nll": nll / count, "kl": kl / count, "accuracy": accuracy / count} if count else {}
