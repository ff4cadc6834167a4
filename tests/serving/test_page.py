"""The page of the model server, uploads, explanations, and the OpenAPI document."""

import base64
import io
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openapi_spec_validator import validate
from PIL import Image

from ratchet.traffic.log_reader import find, log_folder
from tests.serving.test_model_server import ROWS, SPECS, Served, images, registry, shared, until  # noqa: F401

pytestmark = pytest.mark.system


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.array(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "a.png"
    path.write_bytes(png(ROWS["image"][0]))
    return path


def curl(url: str, *arguments: str) -> tuple[int, Any]:
    done = subprocess.run(["curl", "-s", "-w", "\n%{http_code}", url, *arguments], capture_output=True, check=True)
    body, _, status = done.stdout.decode().rpartition("\n")
    return int(status), json.loads(body)


def test_uploaded_files_have_the_answer_of_their_pixels(images: Served, image_file: Path) -> None:  # noqa: F811
    url = images.url("/v1/predict")
    _, expected, _ = images.ask("/v1/predict", {"input": [ROWS["image"][0]] * 2, "options": {"top_k": 2}})
    status, form = curl(
        url, "-F", f"files=@{image_file};filename=../../etc/passwd", "-F", f"file=@{image_file}", "-F", "top_k=2"
    )
    assert (status, form["predictions"]) == (200, expected["predictions"])
    status, raw = curl(url, "--data-binary", f"@{image_file}", "-H", "Content-Type: image/png")
    assert status == 200
    assert raw["predictions"][0]["class"] == expected["predictions"][0]["class"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no end"),
        (b"--x\r\nA: b\r\n\r\nc\r\n--x--", "part 0 of the form: Field name not found in Content-Disposition; allowed"),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\nc\r\n--x--", 'Content-Disposition: "form-data"; allowed'),
        (b'--x\r\nContent-Disposition: form-data; name="path"\r\n\r\n/etc/passwd\r\n--x--', "path: unknown field"),
        (b'--x\r\nContent-Disposition: form-data; name="top_k"\r\n\r\n-1\r\n--x--', "top_k: found '-1'"),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nGIF8\r\n--x--', "input[0]: is not an image"),
        (b"--x--", "file: is missing"),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n\r\n' * 5000, "too many parts"),
    ],
)
def test_damaged_form_is_refused_by_name(images: Served, body: bytes, message: str) -> None:  # noqa: F811
    status, answer, _ = images.ask("/v1/predict", body, Content_Type="multipart/form-data; boundary=x")
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize("header", ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"])
def test_form_of_another_page_is_refused(images: Served, image_file: Path, header: str) -> None:  # noqa: F811
    assert curl(images.url("/v1/predict"), "-F", f"file=@{image_file}", "-H", header)[0] == 403


@pytest.mark.parametrize("name", SPECS)
def test_examples_of_the_openapi_document_are_answered(name: str, shared: Callable[[str], Served]) -> None:  # noqa: F811
    served = shared(name)
    _, document = served.get("/openapi.json")
    validate(document)
    examples = 0
    for path, methods in document["paths"].items():
        if "post" in methods and path != "/v1/labels":  # which needs the id of an answer
            body = methods["post"]["requestBody"]["content"]["application/json"]["example"]
            status, answer, _ = served.ask(path, body)
            assert status == 200, (path, answer)
            examples += 1
    assert examples == (3 if name == "tokens" else 4)


def test_explanations_name_columns_words_and_pixels(shared: Callable[[str], Served]) -> None:  # noqa: F811
    explained = {}
    for name in ("table", "text", "image"):
        served = shared(name)
        status, answer, _ = served.ask("/v1/explain", {"input": ROWS[name][4:5]})
        assert status == 200, answer
        explained[name], folder, answer_id = answer["explanation"], log_folder(served.workspace), answer["id"]
        until(lambda folder=folder, answer_id=answer_id: len(find(folder, answer_id)) == 1)
    assert {item["name"] for item in explained["table"]["contributions"]} == {"age", "fare", "class"}
    assert any(item["value"] for item in explained["table"]["contributions"])
    assert [item["name"] for item in explained["text"]["contributions"]] == ROWS["text"][4].split()
    with Image.open(io.BytesIO(base64.b64decode(explained["image"]["png"]))) as overlay:
        assert overlay.size == (8, 8)


def test_explanation_is_refused_with_its_reason(images: Served, shared: Callable[[str], Served]) -> None:  # noqa: F811
    assert images.ask("/v1/explain", {"input": ROWS["image"][:2]})[:2] == (
        400,
        {"error": "input: found 2 rows; allowed: 1 for an explanation"},
    )
    status, answer, _ = shared("tokens").ask("/v1/explain", {"input": ["a"]})
    assert status == 400
    assert "tokens have no explanations" in answer["error"]


def test_page_allows_its_own_script_only(images: Served) -> None:  # noqa: F811
    with urllib.request.urlopen(images.url("/")) as answer:
        policy, content = answer.headers["Content-Security-Policy"], answer.read().decode()
        assert answer.headers["X-Frame-Options"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in content.replace("http://www.w3.org/2000/svg", "")
