"""The description of a model: its name, its input and its target."""

from dataclasses import dataclass
from typing import Any

from ratchet.kinds.inputs import ArraysInput, ImageInput, Input, TableInput, TextInput, TokensInput
from ratchet.kinds.spec_json import input_from_json, to_json, without_facts
from ratchet.problems import Classes, Target, target_from_json

__all__ = ["ModelSpec", "Width", "image_spec"]


@dataclass(frozen=True)
class Width:
    """Numbers of outputs and inputs of a layer that has fewer than the network's code gives it."""

    layer: str  # name in the network
    outputs: int
    inputs: int


@dataclass(frozen=True)
class ModelSpec:
    """Everything needed to build a model: its name, its input and its target."""

    name: str
    input: Input
    target: Target
    factory: str = "none"  # package.module:function, used instead of `name`
    code: str = "none"  # file or folder of the code of `factory`, and of the user's loss
    widths: tuple[Width, ...] = ()  # of a pruned model
    flip_average: bool = False  # predict with the mean of the outputs for an image and for its mirror image
    root: str = "."  # folder of `code` on this machine; not part of the model's identity

    @property
    def called(self) -> str:
        return self.name if self.factory == "none" else self.factory

    @property
    def image(self) -> ImageInput:
        """The input, for code that handles images only."""
        assert isinstance(self.input, ImageInput), "callers check the kind first"
        return self.input

    @property
    def table(self) -> TableInput:
        """The input, for code that handles tables only."""
        assert isinstance(self.input, TableInput), "callers check the kind first"
        return self.input

    @property
    def text(self) -> TextInput:
        """The input, for code that handles texts only."""
        assert isinstance(self.input, TextInput), "callers check the kind first"
        return self.input

    @property
    def arrays(self) -> ArraysInput:
        """The input, for code that handles arrays of a user's own kind only."""
        assert isinstance(self.input, ArraysInput), "callers check the kind first"
        return self.input

    @property
    def stream(self) -> TokensInput:
        """The input, for code that handles token streams only."""
        assert isinstance(self.input, TokensInput), "callers check the kind first"
        return self.input

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; none if the problem has no classes."""
        return self.target.classes

    def to_json(self) -> dict[str, Any]:
        """Return the spec without the place of its code."""
        content: dict[str, Any] = {
            "name": self.name,
            "input": to_json(self.input),
            "target": to_json(self.target),
            "factory": self.factory,
            "code": self.code,
        }
        if self.widths:
            content["widths"] = {width.layer: [width.outputs, width.inputs] for width in self.widths}
        return content | ({"flip_average": True} if self.flip_average else {})

    @property
    def identity(self) -> dict[str, Any]:
        """Plain data that decide the model: `to_json` without facts of the training samples."""
        content = self.to_json()
        return content | {"input": without_facts(content["input"])}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ModelSpec":
        """Read what `to_json` returned, or the spec of an image classifier in the older format 1.

        Raises:
            ValueError, TypeError, KeyError: it is neither.
        """
        if "input" not in content:
            older: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
            }
            return image_spec(**older)
        parts = {"input": input_from_json(content["input"]), "target": target_from_json(content["target"])}
        widths = tuple(Width(layer, *sizes) for layer, sizes in content.get("widths", {}).items())
        return cls(**{**content, **parts, "widths": widths})


def image_spec(
    name: str,
    classes: tuple[str, ...],
    channels: int,
    height: int,
    width: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    dtype: str = "uint8",
    depth: int | None = None,
    **more: Any,
) -> ModelSpec:
    """Return the spec of an image classifier. `more` are further fields of `ModelSpec`."""
    images = ImageInput(height=height, width=width, channels=channels, mean=mean, std=std, dtype=dtype, depth=depth)
    return ModelSpec(name, images, Classes(classes), **more)
