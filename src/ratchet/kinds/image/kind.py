"""Images: arrays of pixels, or files of them, in requests and for other models."""

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.image.depth import eight_bits, largest, raw_values
from ratchet.kinds.image.image_files import allowed, is_file, pixels_of
from ratchet.kinds.inputs import ImageInput
from ratchet.kinds.protocol import (
    Arrays,
    InputError,
    Json,
    Kind,
    RawValue,
    TensorSpec,
    Unusual,
    far_values,
    go_on,
    require_fit,
)
from ratchet.kinds.raw_values import as_type

if TYPE_CHECKING:
    import torch
    from mlflow.types import Schema

    from ratchet.problems import Target
    from ratchet.training import Split

__all__ = ["Images"]

_AT_ONCE = 1 << 20  # pixels whose features are computed together, as float64
_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow's conversion to greyscale


class Images(Kind[ImageInput]):
    """Images of one size. A program takes raw values, and scales those of more than 8 bits itself."""

    name = "image"
    program_inputs = ("pixels",)
    is_quick = True
    file_suffixes = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", "")
    files_word = "images"
    variants = ("int8-static",)
    networks = MappingProxyType({"convnet": "ConvNet", "resnet": "ResidualNet", "fastnet": "FastNet"})
    model = "ImageModel"
    has_sources = True
    smooths_labels = True
    has_torchvision = True
    mirrors = True
    has_pixels = True
    usual_copies = 0.0
    size_fix = "set a larger data.image_size, or "
    noun = ("image", "images")

    def example(self, spec: ImageInput, rows: int, seed: int) -> Arrays:
        random, shape = np.random.default_rng(seed), (rows, *spec.shape)
        if spec.dtype == "uint8":
            return (random.integers(0, 256, shape).astype(spec.raw_dtype),)
        return (random.normal(spec.mean, spec.std, shape).astype(np.float32),)

    def zeros(self, spec: ImageInput, rows: int) -> Arrays:
        return (np.zeros((rows, *spec.shape), spec.raw_dtype),)

    def packed(self, arrays: Arrays, spec: ImageInput) -> Arrays:
        return arrays if spec.depth is None else (eight_bits(arrays[0], spec.depth),)

    def network_inputs(self, inputs: "tuple[torch.Tensor, ...]", spec: ImageInput) -> "tuple[torch.Tensor, ...]":
        """Return pixels as the network takes them: from raw values, (n, height, width, channels)."""
        import torch

        (pixels,) = inputs
        if spec.depth is not None:  # as `eight_bits`
            limit = largest(spec.depth)
            values = pixels.to(torch.int32).clamp(max=limit) * 255 + limit // 2
            pixels = torch.div(values, limit, rounding_mode="floor").to(torch.float32)
        return (pixels.permute(0, 3, 1, 2),)

    def to_tensors(self, arrays: Arrays) -> "tuple[torch.Tensor, ...]":
        return tuple(tensor.permute(0, 3, 1, 2) for tensor in super().to_tensors(arrays))

    def from_tensors(self, inputs: "tuple[torch.Tensor, ...]") -> Arrays:
        return super().from_tensors(tuple(tensor.permute(0, 2, 3, 1) for tensor in inputs))

    def read(self, values: Any, spec: ImageInput, field: str, check: Callable[[], None] = go_on) -> Arrays:
        """Return the pixels of arrays, of nested lists, or of files: bytes or {"b64": text}."""
        if isinstance(values, list) and values and all(is_file(value) for value in values):
            if not self.takes_files(spec):
                raise InputError(f"{field}[0]: image files are not possible with this model; send {allowed(spec)}")
            return (pixels_of(values, spec, field, check),)
        if (images := _bytes(values, spec)) is not None:
            return (images,)
        # Of type object: with another one each value would take as much memory as the longest text.
        images = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
        if images.ndim == 3 and spec.channels == 1:
            images = images[..., None]
        if images.shape[1:] != spec.shape and not (images.size == 0 and images.ndim == 1):
            raise InputError(f"{field}: found shape {list(images.shape)}; allowed: {allowed(spec)}")
        if images.size == 0:
            return (np.empty((0, *spec.shape), spec.raw_dtype),)
        try:
            return (as_type(images, np.dtype(spec.raw_dtype)),)
        except (ValueError, TypeError, OverflowError):
            is_number = images.dtype.kind in "iuf"
            fault = f"found values from {images.min()} to {images.max()}" if is_number else "has other values"
            raise InputError(f"{field}: {fault}; allowed: {allowed(spec)}") from None

    def values(self, arrays: Arrays, spec: ImageInput) -> NDArray[Any]:
        return arrays[0] if spec.depth is None else raw_values(arrays[0], spec.depth)

    def features(self, arrays: Arrays, spec: ImageInput) -> dict[str, NDArray[Any]]:
        (pixels,) = arrays
        rows = max(1, _AT_ONCE // max(1, pixels.shape[1]))
        pieces = [pixels[begin : begin + rows] for begin in range(0, len(pixels), rows)] or [pixels]
        return {
            "brightness": np.concatenate([piece.mean(1, np.float64) for piece in pieces]),
            "contrast": np.concatenate([piece.std(1, np.float64) for piece in pieces]),
        }

    def unusual(self, arrays: Arrays, spec: ImageInput, raw_value: RawValue) -> Iterator[Unusual]:
        """Yield images far from the training pixels, or of 0 and 1 only: masks, or images scaled to 0..1."""
        (pixels,) = arrays
        yield from far_values(pixels, "pixels", spec.range)
        if spec.dtype == "uint8" and max(spec.mean) > 1.0 and pixels.size:
            for row, highest in enumerate(pixels.max(axis=(1, 2, 3)).tolist()):
                if highest == 1:
                    yield Unusual(row, "pixels", "scale", 1, largest(spec.depth or 8))

    def takes_files(self, spec: ImageInput) -> bool:
        return spec.dtype == "uint8" and spec.depth is None and spec.height == spec.width

    def is_equal(self, first: ImageInput, second: ImageInput) -> bool:
        return (first.shape, first.raw_dtype, first.depth) == (second.shape, second.raw_dtype, second.depth)

    def obstacle(self, have: ImageInput, want: ImageInput) -> str:
        if want.dtype != have.dtype:
            return f"it takes {want.dtype} pixels, and these are {have.dtype}"
        if want.channels != have.channels and {want.channels, have.channels} != {1, 3}:
            return f"it takes images of {want.channels} channels, and these have {have.channels}"
        return ""

    def adapt(self, arrays: Arrays, have: ImageInput, want: ImageInput) -> Arrays:
        """Return images in the wanted channels and size, resized with antialiasing."""
        import torch
        from torch.nn import functional

        (packed,) = self.to_tensors(arrays)
        images = packed.float()
        if want.channels == 1 and have.channels == 3:
            images = (images * torch.tensor(_LUMINANCE).view(1, 3, 1, 1)).sum(1, keepdim=True)
        elif want.channels != have.channels:
            images = images.expand(-1, want.channels, -1, -1)
        if tuple(images.shape[2:]) != (want.height, want.width):
            images = functional.interpolate(images, (want.height, want.width), mode="bilinear", antialias=True)
        return self.from_tensors((images.round().clamp(0, 255).to(torch.uint8) if have.dtype == "uint8" else images,))

    def continued(self, own: ImageInput, parent: ImageInput) -> ImageInput:
        """Return the input with the parent's scaling; the size may be another."""
        weights, samples = (f"{each.channels} channels of {each.dtype}" for each in (parent, own))
        require_fit(weights, samples)
        return replace(own, mean=parent.mean, std=parent.std, limits=parent.limits)

    def open_split(self, packed: Path, name: str, manifest: Mapping[str, Any], spec: ImageInput) -> "Split":
        from ratchet.training.batches import ImageSplit

        return ImageSplit.open(packed, name, manifest)

    def scaled_as(self, spec: ImageInput, mean: tuple[float, ...], std: tuple[float, ...]) -> ImageInput:
        """Return the input with mean and std of pretrained weights, of pixels 0..1. Grey images get their averages."""
        if spec.dtype != "uint8" or not mean or (len(mean) != spec.channels and 1 not in (len(mean), spec.channels)):
            return spec
        if len(mean) != spec.channels:
            mean, std = ((fmean(values),) * spec.channels for values in (mean, std))
        return replace(spec, mean=tuple(255 * value for value in mean), std=tuple(255 * value for value in std))

    def network_arguments(self, spec: ImageInput, target: "Target") -> dict[str, Any]:
        """Return the arguments; `classes` is the number of outputs, also for other problems."""
        return {"classes": target.outputs, "channels": spec.channels, "height": spec.height, "width": spec.width}

    def tensors(self, spec: ImageInput) -> tuple[TensorSpec, ...]:
        return (TensorSpec("pixels", spec.raw_dtype, spec.shape),)

    def schema(self, spec: ImageInput) -> Json:
        height, width, channels = spec.shape
        arrays: Json = {"type": "array", "description": f"{height} x {width} x {channels} raw values"}
        file = {"type": "string", "contentEncoding": "base64"}
        files: Json = {"type": "object", "properties": {"b64": file}, "required": ["b64"]}
        return {"type": "array", "items": {"anyOf": [files, arrays]} if self.takes_files(spec) else arrays}

    def example_values(self, spec: ImageInput) -> list[Any]:
        if not self.takes_files(spec):
            return [_mean_image(spec).tolist()]
        from PIL import Image

        # Brighter from top to bottom: an image of the mean colour has no explanation.
        ramp = np.linspace(0, 255, spec.height)[:, None, None]
        values, file = np.broadcast_to(ramp, spec.shape).astype(np.uint8), io.BytesIO()
        Image.fromarray(values[:, :, 0] if spec.channels == 1 else values).save(file, "PNG")
        return [{"b64": base64.b64encode(file.getvalue()).decode()}]

    def example_tensors(self, spec: ImageInput) -> list[list[Any]]:
        return [_mean_image(spec).ravel().tolist()]

    def mlflow_schema(self, spec: ImageInput) -> "Schema":
        from mlflow.types import Schema, TensorSpec

        return Schema([TensorSpec(np.dtype(spec.raw_dtype), (-1, *spec.shape))])

    def summary(self, spec: ImageInput) -> str:
        shape = " x ".join(map(str, spec.shape))
        return f"images of {shape} (height x width x channels), {_dtype(spec)}, resized as the ingest stage does it"

    def argument(self, spec: ImageInput) -> str:
        return f"{_dtype(spec)} ({', '.join(map(str, ('n', *spec.shape)))})"


def _bytes(values: Any, spec: ImageInput) -> NDArray[np.uint8] | None:
    """Return images of whole numbers from 0 to 255 in nested lists, in a tenth of NumPy's time; None: they are not."""
    if spec.raw_dtype != "uint8" or not isinstance(values, list) or not values:
        return None
    level: list[Any] = values
    try:
        is_flat = spec.channels == 1 and not isinstance(values[0][0][0], list)
        for size in spec.shape[: 2 if is_flat else 3]:
            if set(map(len, level)) != {size} or set(map(type, level)) != {list}:
                return None
            level = list(chain.from_iterable(level))
        images = np.frombuffer(bytes(level), np.uint8)
        if any(type(level[at]) is bool for at in np.flatnonzero(images <= 1).tolist()):
            return None
        return images.reshape(len(values), *spec.shape)
    except (TypeError, ValueError, LookupError):  # a value that is no list, or no whole number from 0 to 255
        return None


def _mean_image(spec: ImageInput) -> NDArray[Any]:
    return np.broadcast_to(np.array(spec.mean), spec.shape).astype(spec.raw_dtype)


def _dtype(spec: ImageInput) -> str:
    return spec.dtype if spec.depth is None else f"uint16, raw values of up to {spec.depth} bits"
