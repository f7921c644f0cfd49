"""`wandb.config`: values by attribute and by key. Tested in tests/wandb_drop_in/test_surface.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

Changed = Callable[[Mapping[str, Any]], None]


class Config(MutableMapping[str, Any]):
    """The configuration of a run. What is changed is in run.json at once."""

    def __init__(self, values: Mapping[str, Any], changed: Changed) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_changed", changed)

    _values: dict[str, Any]
    _changed: Changed

    def update(self, values: Any = (), /, allow_val_change: bool | None = None, **more: Any) -> None:
        """Values of a mapping, a namespace of argparse, or flags."""
        found = {name.strip("-"): value for name, value in {**read_config(values), **more}.items()}
        self._values.update(found)
        self._changed(found)

    def setdefaults(self, values: Any) -> None:
        self.update({name: value for name, value in read_config(values).items() if name not in self._values})

    def as_dict(self) -> dict[str, Any]:
        return dict(self._values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        raise TypeError("values of a configuration cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"the configuration has no '{name}'") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(self._values)


def read_config(values: Any) -> dict[str, Any]:
    """A configuration in any of the forms that W&B takes."""
    if values is None:
        return {}
    if isinstance(values, str):  # a file
        import yaml

        with open(values, encoding="utf-8") as file:
            loaded = yaml.safe_load(file) or {}
        # W&B's own files have {"desc": ..., "value": ...} for each.
        return {
            str(name): item["value"] if isinstance(item, dict) and "value" in item else item
            for name, item in loaded.items()
            if name != "wandb_version"
        }
    if hasattr(values, "flag_values_dict"):
        return dict(values.flag_values_dict())
    if not isinstance(values, Mapping) and hasattr(values, "__dict__"):
        return dict(vars(values))
    return {str(name): value for name, value in dict(values).items()}
