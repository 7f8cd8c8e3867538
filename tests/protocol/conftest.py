"""A server to talk to: KVILT_URL names one that runs; otherwise KVILT_SERVE_CMD starts one ("{port}" is replaced).

KVILT_API_KEY is the key, if one is set. Traffic goes to loopback only.
"""

import os
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_healthy(url, process, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process and process.poll() is not None:
            pytest.exit(f"the server ended with {process.returncode} before it was healthy", 1)
        try:
            with urllib.request.urlopen(url + "/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    pytest.exit(f"{url} was not healthy within {seconds} s", 1)


@pytest.fixture(scope="session")
def base_url():
    url = os.environ.get("KVILT_URL", "").rstrip("/")
    process = None
    if not url:
        command = os.environ.get("KVILT_SERVE_CMD")
        if not command:
            pytest.exit("set KVILT_URL, or KVILT_SERVE_CMD such as 'build/release/fake_server --port {port}'", 1)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(shlex.split(command.format(port=port)))
    wait_healthy(url, process, 120)
    yield url
    if not process:
        return
    died = process.poll()
    process.terminate()
    try:
        status = process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert died is None, f"the server died during the tests: {died}"
    assert status == 0, f"the server ended with {status} on SIGTERM"


@pytest.fixture(scope="session")
def client(base_url):
    key = os.environ.get("KVILT_API_KEY", "none")
    with openai.OpenAI(base_url=base_url + "/v1", api_key=key, max_retries=0, timeout=120) as one:
        yield one


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture(scope="session")
def chats(client, model):
    """Skips where the model has no chat template."""
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=1)
    except openai.BadRequestError as refused:
        pytest.skip(f"the model takes no chat: {refused}")


@pytest.fixture(scope="session")
def takes_tools(client, model, chats):
    """Skips where the model's template has no place for tools."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    asked = {"model": model, "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "max_tokens": 1}
    try:
        client.chat.completions.create(**asked)
    except openai.BadRequestError as refused:
        pytest.skip(f"no tools: {refused}")
