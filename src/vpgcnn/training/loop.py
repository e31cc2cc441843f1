"""The loop. Every random choice is a function of the seed and the step, so a run can stop anywhere.

One process or many, the same steps: `batch_size` counts the images of all processes, batch
statistics are taken over all of them, and random choices are drawn for all of them.
"""

from __future__ import annotations

import math
import signal
import time
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from vpgcnn.analysis import read_weights
from vpgcnn.data import Dataset, Split, load
from vpgcnn.errors import NotFiniteError, UserError
from vpgcnn.levels import tell_progress
from vpgcnn.models import Policy, count_parameters, in_words
from vpgcnn.norm import synchronise
from vpgcnn.objective import Band, DualWeight, Elbo, KlSchedule, log_shares
from vpgcnn.processes import across
from vpgcnn.serial import read_json
from vpgcnn.training.batches import Batches
from vpgcnn.training.checkpoint import (
    Card,
    load_weights,
    optimiser_tensors,
    part_of,
    read_tensors,
    restore_optimiser,
    save_model,
    started,
)
from vpgcnn.training.checks import check_numbers, check_search, check_settings, check_size, check_threads
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.optimisers import make_optimiser, parts_of, rate_factor
from vpgcnn.training.progress import Quiet
from vpgcnn.training.run import Run, chosen_weights
from vpgcnn.training.search import load_policy, search_policy
from vpgcnn.training.seeds import generator, seed_of

__all__ = ["Interrupted", "evaluate", "make_card", "train"]


class Interrupted(Exception):  # noqa: N818
    """Training was asked to stop; its state is saved."""


class _Wish(AbstractContextManager["_Wish"]):
    """Ctrl-C and SIGTERM ask for a stop after the step; a second one stops at once."""

    def __init__(self) -> None:
        self.stop = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._old[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: then signals are someone else's
                break
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True

    def __exit__(self, *_: object) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)


def make_card(config: TrainConfig, dataset: Dataset) -> Card:
    """What has to be known to use the network later."""
    images = dataset.channels, dataset.size, dataset.mean, dataset.std
    return Card(config.model, dataset.classes, *images, dataset.name, config.augmenter)


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, card: Card, accelerator: Accelerator, batch: int = 256
) -> dict[str, float]:
    """Accuracy, nll and kl (nats, mean per image) on a part of the data, shared among processes."""
    if not len(split):
        return {"images": 0}
    model.eval()
    sums = torch.zeros(3, dtype=torch.float32, device=accelerator.device)
    own = torch.arange(len(split))[accelerator.process_index :: accelerator.num_processes]
    for index in own.split(batch) if len(own) else ():
        images, labels = card.standardised(split.images[index].to(accelerator.device)), split.labels[index]
        labels = labels.to(accelerator.device)
        with accelerator.autocast():
            prediction = model(images)
        elbo = Elbo.of(prediction, labels)
        right = (prediction[0].argmax(dim=1) == labels).sum()
        sums += torch.stack([right, elbo.nll * len(index), elbo.kl * len(index)]).float()
    right, nll, kl = (accelerator.reduce(sums, "sum") / len(split)).tolist()
    if not math.isfinite(nll + kl):
        raise UserError(f"the network's answers are not finite (nll {nll}, kl {kl}): lower network.rate")
    return {"accuracy": right, "nll": nll, "kl": kl, "images": len(split)}


def train(config: TrainConfig, out: Path, *, resume: bool = False, progress: Quiet | None = None) -> dict[str, Any]:
    """Train as the configuration says, keep everything in the folder `out`, test the chosen epoch.

    resume: go on with the run that is there (or begin it). Returns what result.json says.
    """
    check_numbers(config, "")
    check_threads(config.threads)
    if config.threads > 0:
        torch.set_num_threads(config.threads)
    return _Training(config, out, make_accelerator(config), progress or Quiet()).go(resume)


def make_accelerator(config: TrainConfig) -> Accelerator:
    """The engine of one run. accelerate keeps its settings for the process, and the last run's may have been others."""
    if config.precision == "fp16" and (config.device == "cpu" or not torch.cuda.is_available()):
        raise UserError("precision fp16 needs a CUDA device: use bf16")
    AcceleratorState._reset_state(reset_partial_state=not across())
    # Without a GPU it has to be told so: several processes would else not know of each other.
    cpu = config.device == "cpu" or not torch.accelerator.is_available()
    return Accelerator(mixed_precision=config.precision, cpu=cpu)


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
            self.progress.say(f"{self.run.folder} is finished")
            return done
        self._restore()
        with _Wish() as wish, self.progress:
            if self.config.augmenter.kind == "policy":
                self._search(wish)
            self.progress.begin("training", self.total, self.step)
            while self.step < self.total:
                self._one_step(wish)
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
            self.progress.say(f"data: {note}")
        train, validation, test = len(self.data.train), len(self.data.validation), len(self.data.test)
        self.progress.say(f"images: {train} for training, {validation} for validation, {test} for the test")
        self.card = make_card(config, self.data)
        self.batches = Batches(self.data.train, config, self.card, size=config.batch_size)
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
        if config.start is None:
            model = self.card.build()
        else:
            model, said = started(self.card, chosen_weights(config.start))
            self.progress.say(said)
        check_size(model, self.card)
        self.parameters = count_parameters(model)
        self.progress.say(f"network: {in_words(config.model)}, {self.parameters:,} parameters")
        if self.accelerator.num_processes > 1:
            synchronise(model)
        groups = parts_of(model)
        self.plain = model
        self.names = {group: [name for name, _ in members] for group, members in groups.items()}
        optimisers = [
            make_optimiser([parameter for _, parameter in members], getattr(config, group))
            for group, members in groups.items()
        ]
        self.model, *prepared = self.accelerator.prepare(model, *optimisers)
        self.optimisers = dict(zip(self.names, prepared, strict=True))
        self.schedule = KlSchedule(**{part.name: getattr(config.objective, part.name) for part in fields(KlSchedule)})
        objective = config.objective
        self.weight: DualWeight | Band = DualWeight()
        if objective.mode == "dual":
            self.weight = DualWeight(objective.tolerance, objective.speed, weight=objective.start)
        elif objective.mode == "band":
            self.weight = Band(objective.low, objective.high, objective.speed, weight=objective.start)
        shares = log_shares(self.data.train.labels, len(self.data.classes)).to(self.accelerator.device)
        self.prior = config.objective.balance * shares if config.objective.balance else None
        self.step, self.elapsed, self.best = 0, 0.0, None  # type: int, float, dict[str, Any] | None
        self.epoch_sums, self.log_sums = [0.0] * 4, [0.0] * 4
        self.stopping = False
        self.policy: Policy | None = None
        self.searched: dict[str, Any] = {}
        self.saved_at = self.timed_at = time.monotonic()

    def _restore(self) -> None:
        kept = self.run.load_state()
        self._check_data(None if kept is None else kept[1].get("data"))
        if self.main:
            self.run.rewind(None if kept is None else kept[1])
        if kept is None:
            return
        tensors, said = kept
        parts = {key: part_of(tensors, key) for key in ("model", *self.names)}
        load_weights(self.plain, parts["model"], self.run.state)
        for group, optimiser in self.optimisers.items():
            restore_optimiser(optimiser.optimizer, self.names[group], parts[group])
        self.step, self.elapsed, self.best = said["step"], said["elapsed"], said["best"]
        self.epoch_sums, self.log_sums = said["epoch_sums"], said["log_sums"]
        self.weight = type(self.weight)(**said["dual"])
        if self.accelerator.scaler is not None and said["scaler"]:
            self.accelerator.scaler.load_state_dict(said["scaler"])
        self.progress.say(f"resuming after step {self.step} of {self.total}")

    def _search(self, wish: _Wish) -> None:
        """Find a policy, or take the one that was found. All processes search alike, one of them writes."""
        device = self.accelerator.device

        def stopping() -> bool:
            mine = torch.tensor(float(wish.stop), device=device)
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
            raise UserError(f"{self.run.folder} was begun with other data than are there now: {self.data.notes[0]}")

    # ------------------------------------------------------------ a step

    def _one_step(self, wish: _Wish) -> None:
        config, weight = self.config, self._weight()
        images, labels = self._batch()
        factor = rate_factor(self.step, self.total, config.warmup, config.final)
        for group, optimiser in self.optimisers.items():
            for part in optimiser.param_groups:
                part["lr"] = getattr(config, group).rate * factor
        torch.manual_seed(seed_of(config.seed, "step", self.step))
        self.model.train()
        tell_progress(self.plain, self.step / max(1, self.total - 1))
        try:
            with self.accelerator.autocast():
                prediction = self.model(images)
        except NotFiniteError as error:
            raise UserError(f"weights are not finite after step {self.step}: lower network.rate") from error
        elbo = Elbo.of(prediction, labels, self.prior)
        self.accelerator.backward(elbo.total(weight))
        if config.clip > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), config.clip)
        for optimiser in self.optimisers.values():
            optimiser.step()
            optimiser.zero_grad()
        right = (prediction[0].detach().argmax(dim=1) == labels).float().mean()
        seen = torch.stack([elbo.nll.detach(), elbo.kl.detach(), right, right.new_tensor(float(wish.stop))])
        nll, kl, accuracy, stopping = self.accelerator.reduce(seen, "mean").tolist()
        if not math.isfinite(nll + kl):
            raise UserError(
                f"the loss is not finite after step {self.step + 1} (nll {nll}, kl {kl}): lower network.rate"
            )
        self.stopping = stopping > 0
        if config.objective.mode != "schedule":
            self.weight = self.weight.after(nll if config.objective.mode == "dual" else kl)
        self.step += 1
        for sums in (self.epoch_sums, self.log_sums):
            for place, value in enumerate((nll, kl, accuracy, 1.0)):
                sums[place] += value
        if config.log_steps and self.step % config.log_steps == 0:
            self._log({"step": self.step, "lambda": weight, **_means(self.log_sums)})
            self.log_sums = [0.0] * 4
        self.progress.advance(1, f"nll {nll:.3f} kl {kl:.3f}")

    def _weight(self) -> float:
        if self.config.objective.mode != "schedule":
            return self.weight.weight
        return self.schedule.at(self.step / max(1, self.total - 1))

    def _batch(self) -> tuple[Tensor, Tensor]:
        whole = self.config.batch_size
        own = whole // self.accelerator.num_processes
        part = slice(self.accelerator.process_index * own, (self.accelerator.process_index + 1) * own)
        images, labels = self.batches.at(self.step, self.accelerator.device, part)
        if self.policy is not None:
            draws = torch.rand(whole, 3, generator=generator(self.config.seed, "policy", self.step))[part]
            images = self.policy(images, labels, draws.to(images))
        return images, labels

    # ------------------------------------------------------------ between steps

    def _end_epoch(self) -> None:
        epoch = self.step // self.per_epoch
        training = {f"train_{key}": value for key, value in _means(self.epoch_sums).items()}
        self.epoch_sums = [0.0] * 4
        scores = evaluate(self.plain, self.data.validation, self.card, self.accelerator)
        self._clock()
        line: dict[str, Any] = {"epoch": epoch, "step": self.step, **training, "lambda": self._weight()}
        line |= {f"validation_{key}": value for key, value in scores.items()} | {"seconds": round(self.elapsed, 1)}
        if self.config.watch and self.main:
            line["levels"] = self._watched()
        self._log(line)
        said = {"epoch": epoch, "validation": scores}
        if scores["images"] and (self.best is None or self._better(scores, self.best["validation"])):
            self.best = said
            if self.main:
                save_model(self.run.best, self.plain, self.card, said)
        if self.main:
            save_model(self.run.last, self.plain, self.card, said)
        self._save()
        held = ""
        if scores["images"]:
            held = f"validation {scores['accuracy']:.2%}, nll {scores['nll']:.4f}, kl {scores['kl']:.3f}, "
        trained = f"train {training['train_accuracy']:.2%}"
        self.progress.say(f"epoch {epoch:>3} of {self.config.epochs}: {trained}, {held}{self.elapsed:.0f} s")

    def _watched(self) -> dict[str, dict[str, list[list[float]]]]:
        """The weights of the levels for a few validation images: as evaluation takes them, and as training draws."""
        few = self.data.validation.images[: self.config.watch].to(self.accelerator.device)
        torch.manual_seed(seed_of(self.config.seed, "watch", self.step))
        kinds = {"evaluated": False, "drawn": True}
        found = {kind: read_weights(self.plain, self.card.standardised(few), drawn=d) for kind, d in kinds.items()}
        return {
            kind: {name: [[round(w, 4) for w in image] for image in weights.tolist()] for name, weights in own.items()}
            for kind, own in found.items()
        }

    def _better(self, new: dict[str, float], old: dict[str, float]) -> bool:
        return new["nll"] <= old["nll"] if self.config.select == "nll" else new["accuracy"] >= old["accuracy"]

    def _clock(self) -> None:
        now = time.monotonic()
        self.elapsed, self.timed_at = self.elapsed + now - self.timed_at, now

    def _log(self, line: dict[str, Any]) -> None:
        if self.main:
            self.run.log(line)

    def _save(self) -> None:
        self._clock()
        tensors = {f"model/{key}": value for key, value in self.plain.state_dict().items()}
        for group, optimiser in self.optimisers.items():
            state = optimiser_tensors(optimiser.optimizer, self.names[group])
            tensors |= {f"{group}/{key}": value for key, value in state.items()}
        scaler = None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict()
        said = {"step": self.step, "elapsed": self.elapsed, "best": self.best, "scaler": scaler}
        said["data"] = self.fingerprint
        said |= {"epoch_sums": self.epoch_sums, "log_sums": self.log_sums, "dual": self.weight.__dict__}
        if self.main:
            self.run.save_state(tensors, said)
        self.accelerator.wait_for_everyone()
        self.saved_at = time.monotonic()

    def _test(self) -> dict[str, Any]:
        path = chosen_weights(self.run.folder)
        tensors, said = read_tensors(path)
        load_weights(self.plain, tensors, path)
        scores = evaluate(self.plain, self.data.test, self.card, self.accelerator)
        result = {"epoch": said["epoch"], "validation": said["validation"], "test": scores}
        result |= {"parameters": self.parameters, "steps": self.step, "seconds": round(self.elapsed, 1)}
        result |= {"data": list(self.data.notes), "fingerprint": self.fingerprint}
        if self.searched:
            result["seconds"] = round(self.elapsed + self.searched["elapsed"], 1)
            result["search_steps"] = self.searched["step"]
        if self.main:
            self.run.finish(result)
        self.accelerator.wait_for_everyone()
        return result


def _means(sums: list[float]) -> dict[str, float]:
    nll, kl, accuracy, count = sums
    return {"nll": nll / count, "kl": kl / count, "accuracy": accuracy / count} if count else {}
