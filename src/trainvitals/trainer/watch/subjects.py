"""The models, optimizers and the loader that are watched: those that were given, and those that were found."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from trainvitals.errors import name_kind
from trainvitals.trainer.watch import discovery
from trainvitals.trainer.watch.batches import Batches
from trainvitals.trainer.watch.moments import Moments


class Subjects:
    """None of them is kept alive by being watched."""

    def __init__(self, moments: Moments, warn: Callable[[str, str], None]) -> None:
        """`warn(topic, text)` once per topic."""
        self._moments = moments
        self._warn = warn
        self._models: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._loader: weakref.ref[Any] | None = None
        self._handles: list[Any] = []
        self._find_models = False

    @property
    def models(self) -> list[Any]:
        """The models that are watched and still alive."""
        return [model for model in (reference() for reference in self._models) if model is not None]

    def add(self, models: Iterable[Any], optimizers: Iterable[Any], loader: Any) -> None:
        """Watch these too. Whatever is already watched stays as it is."""
        watched = {id(model) for model in self.models}
        for model in models:
            if id(model) not in watched:
                self._add_model(model)
        watched = {id(reference()) for reference in self._optimizers}
        for optimizer in optimizers:
            inner = discovery.unwrap_optimizer(optimizer)
            if inner is None:
                self._warn("optimizer", f"{name_kind(optimizer)} is no torch optimizer: its steps are not seen")
            elif id(inner) not in watched:
                self._optimizers.append(weakref.ref(inner))
                self._moments.iterations.expect([inner])
                self._handles.append(inner.register_step_pre_hook(self._moments.before_step))
                self._handles.append(inner.register_step_post_hook(self._moments.after_step))
        if loader is not None:
            self._add_loader(loader)

    def discover(self, *, optimizers: bool, models: bool) -> None:
        """Watch every optimizer of this process, and the models they train, found as each makes its first step."""
        if optimizers:
            module = import_module("torch.optim.optimizer")
            self._handles.append(module.register_optimizer_step_pre_hook(self._moments.before_step))
            self._handles.append(module.register_optimizer_step_post_hook(self._moments.after_step))
        self._find_models = models

    def _add_model(self, model: Any) -> None:
        if isinstance(model, type) or not isinstance(model, import_module("torch.nn").Module):
            what = f"the class {model.__name__}" if isinstance(model, type) else name_kind(model)
            self._warn(what, f"{what} is no torch module: its forward is not seen")
            return
        self._models.append(weakref.ref(model))
        self._moments.see([model])
        if next(model.parameters(), None) is None:
            self._warn("parameters", f"{type(model).__name__} has no parameters: no gradients or layers to look at")

    def _add_loader(self, loader: Any) -> None:
        if hasattr(loader, "_index_sampler"):
            self._loader = weakref.ref(loader)
        else:
            self._warn(
                "loader",
                f"{name_kind(loader)} cannot be timed in place: for data_time, use watch.batches(loader)",
            )

    def meet(self, optimizer: Any) -> None:
        """An optimizer steps for the first time: if models are to be found, watch those it trains."""
        if not self._find_models or self._trained_by(optimizer):
            return
        found = discovery.find_models(discovery.parameters_of(optimizer))
        if not found:  # such as a temperature: what the others train is the model
            others = [p for other in discovery.find_optimizers() for p in discovery.parameters_of(other)]
            found = discovery.find_models(others)
        known = {id(model) for model in self.models}
        for model in found:
            if id(model) not in known:
                self._add_model(model)
        if not found and not known:
            self._moments.see(())
            self._warn("models", "no module holds what the optimizer trains: forward is what happens before backward")

    def name_trained(self, optimizer: Any) -> str:
        """What an optimizer trains, in a word."""
        # Those that were found are the outermost ones, as they would be found again.
        return discovery.name_trained(optimizer, self._trained_by(optimizer) if self._find_models else ())

    def _trained_by(self, optimizer: Any) -> list[Any]:
        """The models that an optimizer trains, if all that it trains is in models that are watched. To find them takes
        a look at every object of the process, which is too much where each parameter has an optimizer."""
        missing = {id(parameter) for parameter in discovery.parameters_of(optimizer)}
        models = []
        for model in self.models:
            own = missing.intersection(map(id, model.parameters()))
            if own:
                models.append(model)
                missing -= own
        return [] if missing else models

    def is_for_training(self, iterator: Any) -> bool:
        """A batch that is asked for now is one to train with."""
        if isinstance(iterator, Batches):
            return True
        loader = self._loader() if self._loader is not None else None
        if loader is not None and getattr(iterator, "_index_sampler", None) is not loader._index_sampler:
            return False
        if not self._moments.records_gradients():
            return False
        for reference in self._models:
            model = reference()
            if model is not None and model.training:
                return True
        return not self._models

    def find_device(self, optimizer: Any = None) -> Any:
        """Where the first model is now, else what the optimizer trains; None if neither has a parameter."""
        parameter = next((p for model in self.models for p in model.parameters()), None)
        if parameter is None and optimizer is not None:
            parameter = next((p for group in optimizer.param_groups for p in group["params"]), None)
        return None if parameter is None else parameter.device

    def release(self) -> None:
        """Take every hook off the optimizers."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
