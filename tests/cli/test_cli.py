"""The command line for its users: help, exit codes, messages, no tracebacks."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from headstart import __version__
from headstart.__main__ import FIRST, MORE, ONE_THREAD, cli, main

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = {"aiohttp", "faiss", "litestar", "numpy", "onnxruntime", "redis", "rich", "uvicorn"}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HEADSTART_CACHE__STORE", "HEADSTART_UPSTREAM"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> int | str | None:
    try:
        main(arguments)
    except SystemExit as left:
        return left.code
    return 0


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command


def test_help_lists_the_everyday_commands_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    everyday, _, more = capsys.readouterr().out.partition("More commands:")
    assert [line.split()[0] for line in everyday.splitlines() if line[2:].startswith(tuple(FIRST))][
        :4
    ] == ["serve", "demo", "tune", "report"]
    assert all(name in more for name in MORE)


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom headstart.__main__ import main\nmain(['--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert HEAVY.isdisjoint(done.stderr.split())
    assert "headstart.__main__" in done.stderr.split()


@pytest.mark.parametrize(
    ("name", "chosen", "threads"),
    [("serve", None, "1"), ("batch", None, "1"), ("batch", "3", "3"), ("wrap", None, "None")],
)
def test_products_of_matrices_have_one_thread(name: str, chosen: str | None, threads: str) -> None:
    script = (
        "import os, sys\nfrom headstart.__main__ import cli\n"
        "early = 'numpy' in sys.modules\ncli.get_command(None, sys.argv[1])\n"
        "print(early, os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    environ = {name: value for name, value in os.environ.items() if name != ONE_THREAD[0]}
    if chosen is not None:
        environ[ONE_THREAD[0]] = chosen
    ran = subprocess.run(
        [sys.executable, "-c", script, name],
        capture_output=True,
        text=True,
        env=environ,
        check=True,
    )
    assert ran.stdout == f"False {threads}\n"


def test_python_runs_the_package_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headstart", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("headstart, version ")


@pytest.mark.parametrize("name", [*FIRST, *MORE])
def test_every_command_helps_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    shown = capsys.readouterr().out
    assert f"Usage: headstart {name}" in shown
    _, found, examples = shown.partition("Example")
    assert found
    assert f"headstart {name}" in examples


@pytest.mark.parametrize("name", ["cache", "config", "encoder", "prices"])
def test_no_summary_of_a_command_is_cut_off(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    _, found, summaries = capsys.readouterr().out.partition("Commands:")
    assert found
    assert "..." not in summaries


def test_every_listed_summary_is_a_command() -> None:
    assert [name for name, _ in commands()] == [*FIRST, *MORE]


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"headstart, version {__version__}\n"


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sevre") == 2
    assert "No such command 'sevre'. Did you mean 'serve'?" in capsys.readouterr().err
    assert run("unheard-of") == 2
    assert "No such command 'unheard-of'.\n" in capsys.readouterr().err


def test_bad_setting_ends_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "headstart.toml"
    path.write_text("[cache]\ntreshold = 1", encoding="utf-8")
    assert run("serve", "--config", str(path)) == 2
    error = capsys.readouterr().err
    assert error == "headstart: cache.treshold: unknown setting; did you mean 'threshold'?\n"


@pytest.mark.parametrize("arguments", [["--version"], ["config", "show"]])
def test_a_full_disk_under_the_output_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headstart", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "headstart: the output: No space left on device\n"


def test_a_process_that_may_open_no_more_files_names_the_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "some.py")

    monkeypatch.setattr("headstart.cli.config.settings_to_read", fail)
    assert run("config", "show") == 1
    assert capsys.readouterr().err == (
        "headstart: Too many open files: raise the limit (ulimit -n, LimitNOFILE of a unit)\n"
    )


def test_an_export_that_fills_the_disk_names_its_file_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headstart.cli.data_sources.existing_store", fail)
    path = tmp_path / "export.jsonl"
    assert run("cache", "export", str(path)) == 1
    assert capsys.readouterr().err == f"headstart: {path}: No space left on device\n"
    assert not path.exists()


LOADING = """
import runpy, sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)
import signal
sys.meta_path.insert(0, Interrupted())
sys.argv = ["headstart", "--version"]
runpy.run_module("headstart", run_name="__main__")
"""


def test_an_interrupt_while_the_libraries_load_prints_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_an_interrupt_while_a_command_loads_leaves_no_library_half_loaded() -> None:
    program = LOADING.replace('"click"', '"headstart.cli.config"')
    program = program.replace('"--version"', '"config", "show"')
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_libraries_load_ends_the_first_process_of_a_container(
    sent: signal.Signals,
) -> None:
    # The kernel ignores a signal to this process that has no handler: so there must be one.
    program = f"import os\nos.getpid = lambda: 1\n{LOADING}".replace("SIGINT", sent.name)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + sent, "", "")


def test_loading_the_command_leaves_the_handler_of_interrupts() -> None:
    code = "import signal, headstart.__main__; print(signal.getsignal(signal.SIGINT).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "default_int_handler\n"


HANGING = """
import signal, sys, threading, time
from headstart.cli import config
from headstart.__main__ import main
def interrupt(*_, **__):
    if sys.argv[1:] == ["hang"]:
        threading.Thread(target=time.sleep, args=(60,)).start()
    raise KeyboardInterrupt
config.settings_to_read = interrupt
main(["config", "show"])
"""


@pytest.mark.parametrize("thread", ["", "hang"])
def test_interrupt_ends_with_130_although_a_thread_hangs(thread: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING, thread],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_config_check_accepts_what_serve_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "check", "--upstream", "http://127.0.0.1:1/v1") == 0
    assert "valid" in capsys.readouterr().out


def test_config_check_names_a_key_variable_that_is_not_set(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "headstart.toml"
    path.write_text(
        "[[upstream]]\nbase_url = 'http://a/v1'\napi_key_env = 'NO_SUCH_KEY'", encoding="utf-8"
    )
    assert run("config", "check", "--config", str(path)) != 0
    assert "NO_SUCH_KEY" in capsys.readouterr().err


def test_config_show_prints_json_without_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_SERVER__CLIENT_KEYS", "sk-secret")
    monkeypatch.setenv("HEADSTART_SERVER__PORT", "9001")
    assert run("config", "show") == 0
    shown = capsys.readouterr().out
    assert "sk-secret" not in shown
    assert json.loads(shown)["server"]["port"] == 9001
