"""vLLM's entrypoint tests against Kvilt: a pytest plugin in which `vllm serve` is `kvilt serve`, run by run.py.

What the tests import of vLLM itself, of torch and of the hub is replaced by stand-ins, since only the server is tested:
modules that say nothing, and a tokenizer of Qwen2.5's own files (SUITE_TOKENIZER: vocab.json, merges.txt,
tokenizer_config.json) by the `tokenizers` package, so that token ids are compared with another program's. The tests'
model is SUITE_REAL under the name that they ask for. Adapters (LoRA, prompt adapters) are left out: Kvilt has none.

Environment: KVILT (the program), SUITE_REAL (the model), SUITE_TOKENIZER.
"""

import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import types
from unittest.mock import MagicMock

import openai
import pydantic
import pytest
import requests

VOCABULARY = 151936  # of Qwen2.5-Coder-0.5B
STOOD_IN = ("vllm", "torch", "transformers", "huggingface_hub", "tests.models", "tests.conftest", "cloudpickle")


class Loose(pydantic.BaseModel):
    """An answer whose fields the tests look at themselves."""
    model_config = pydantic.ConfigDict(extra="allow")

    @classmethod
    def model_validate(cls, obj, **_):
        def deep(value):
            if isinstance(value, dict):
                return Loose(**{key: deep(one) for key, one in value.items()})
            return [deep(one) for one in value] if isinstance(value, list) else value
        return deep(obj)


class Tokens:
    """Qwen2.5's tokenizer and chat template, without Kvilt."""

    def __init__(self):
        import jinja2
        import tokenizers
        from tokenizers import decoders, models, normalizers, pre_tokenizers
        folder = pathlib.Path(os.environ["SUITE_TOKENIZER"])
        config = json.loads((folder / "tokenizer_config.json").read_text())
        own = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
        own.normalizer = normalizers.NFC()
        words = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                 r"|\s+(?!\S)|\s+")
        own.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        own.decoder = decoders.ByteLevel()
        added = sorted(config["added_tokens_decoder"].items(), key=lambda one: int(one[0]))
        for _, token in added:
            one = tokenizers.AddedToken(token["content"], special=token["special"], normalized=False)
            (own.add_special_tokens if token["special"] else own.add_tokens)([one])
        self.own = own
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        self.template = environment.from_string
        self.own_template = config["chat_template"]

    def encode(self, text, add_special_tokens=True):
        return self.own.encode(text, add_special_tokens=add_special_tokens).ids

    def __call__(self, text, **_):
        return {"input_ids": self.encode(text)}

    def decode(self, ids, skip_special_tokens=False):
        return self.own.decode(ids, skip_special_tokens=skip_special_tokens)

    def add_tokens(self, words, **_):  # of an adapter that is not served
        return len(words)

    def save_pretrained(self, _):
        pass

    def convert_ids_to_tokens(self, ids):
        return [self.own.id_to_token(one) for one in ids]

    def convert_tokens_to_ids(self, tokens):
        return [self.own.token_to_id(one) for one in tokens]

    def apply_chat_template(self, conversation=None, tools=None, add_generation_prompt=False,
                            continue_final_message=False, tokenize=False, chat_template=None, **_):
        text = self.template(chat_template or self.own_template).render(
            messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt)
        if continue_final_message:
            last = conversation[-1]["content"].strip()
            text = text[:text.rindex(last) + len(last)]
        return self.encode(text) if tokenize else text


class RemoteOpenAIServer:
    """The tests' own class of this name, with `kvilt serve` in place of `vllm serve`."""
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args, *, env_dict=None, seed=0, auto_port=True, max_wait_seconds=None):
        flags = dict(zip(vllm_serve_args, [*vllm_serve_args[1:], ""]))
        self.host = "localhost"
        self.show_hidden_metrics = any(one.startswith("--show-hidden-metrics") for one in vllm_serve_args)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        kvilt = os.environ["KVILT"]
        known = subprocess.run([kvilt, "serve", "--help"], capture_output=True, text=True, check=False).stdout
        command = [kvilt, "serve", os.environ["SUITE_REAL"], "--port", str(self.port), "--host", "127.0.0.1",
                   "--alias", flags.get("--served-model-name", model), "--shutdown-seconds", "1"]
        if "--max-model-len" in flags:
            command += ["--context", flags["--max-model-len"]]
        if "--api-key" in flags:
            command += ["--api-key", flags["--api-key"]]
        if "--chat-template" in flags and "--chat-template" in known:
            file = pathlib.Path(os.environ["SUITE_OUT"]) / "template.jinja"
            file.write_text(flags["--chat-template"])
            command += ["--chat-template", str(file)]
        key = (env_dict or {}).get("VLLM_API_KEY")
        if key:
            command += ["--api-key", key]
        self.proc = subprocess.Popen(command)
        end = time.monotonic() + 120
        while True:
            try:
                if requests.get(self.url_for("health"), timeout=5).status_code == 200:
                    return
            except requests.RequestException:
                pass
            if self.proc.poll() is not None or time.monotonic() > end:
                raise RuntimeError("Server exited unexpectedly.")
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.terminate()
        try:
            self.proc.wait(8)
        except subprocess.TimeoutExpired:
            self.proc.kill()

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return self.url_root + "/" + "/".join(parts)

    def get_client(self, **given):
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0,
                             **{"timeout": 600, **given})

    def get_async_client(self, **given):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0,
                                  **{"timeout": 600, **given})


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if any(name == one or name.startswith(one + ".") for one in STOOD_IN):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        if module.__name__ == "vllm.transformers_utils.tokenizer":
            module.get_tokenizer = lambda *_, **__: Tokens()
        if module.__name__ == "transformers":
            module.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda *_, **__: Tokens())
        if module.__name__ == "huggingface_hub":
            module.snapshot_download = lambda **_: tempfile.mkdtemp(dir=os.environ["SUITE_OUT"])
        if module.__name__ == "vllm.entrypoints.openai.protocol":
            module.__getattr__ = lambda name: Loose
        if module.__name__ == "vllm.config":
            module.ModelConfig = lambda *_, **__: types.SimpleNamespace(get_vocab_size=lambda: VOCABULARY)
        if module.__name__ == "torch":
            module.iinfo = lambda _: types.SimpleNamespace(min=-2**63, max=2**63 - 1)
        if module.__name__ == "vllm.version":
            module.__version__ = subprocess.run([os.environ["KVILT"], "--version"], capture_output=True, text=True,
                                                check=False).stdout.split()[-1]


def pytest_configure(config):
    sys.path.insert(0, os.getcwd())
    sys.meta_path.insert(0, Finder())
    server = types.ModuleType("tests.utils")
    server.RemoteOpenAIServer, server.VLLM_PATH = RemoteOpenAIServer, pathlib.Path(os.getcwd())
    sys.modules["tests.utils"] = server


def pytest_collection_modifyitems(config, items):
    """Adapters, the second of two frontends and two engines, of which Kvilt has one, and vLLM's own batch program."""
    words = ("zephyr-lora", "zephyr-pa", "[--disable-frontend", "[disable-frontend", "run_batch")

    def is_gone(name):
        second_engine = ("test_chat.py::" in name and "[True" in name
                         or "test_metrics.py::" in name and name.endswith("True]"))
        return second_engine or any(word in name for word in words)
    gone = [one for one in items if is_gone(one.nodeid)]
    config.hook.pytest_deselected(items=gone)
    items[:] = [one for one in items if one not in gone]


@pytest.fixture(scope="session")
def hf_runner():
    pytest.skip("needs the tests' own model, run by transformers")


def sample(name):
    """A fixture of tests/entrypoints/conftest.py, whose folder's conftest would need torch."""
    def value():
        import tests.entrypoints.conftest as own
        return getattr(own, name).__wrapped__()
    return pytest.fixture(name=name)(value)


for _name in ("sample_prompts", "sample_token_ids", "sample_regex", "sample_json_schema", "sample_complex_json_schema",
              "sample_definition_json_schema", "sample_enum_json_schema", "sample_guided_choice",
              "sample_sql_statements", "sample_sql_ebnf", "sample_sql_lark"):
    globals()[_name] = sample(_name)
