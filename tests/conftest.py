"""Settings that must be made before the first import of torch, and fixtures that many tests share."""

import os

# Some virtual CPUs advertise AMX and cannot run it: a bf16 matmul would die with SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# On some CPUs the last bit of a product depends on where in memory its factors lie: here it must not.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from hub_server import LoopbackHub  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]

# The same examples each time, and no memory of other runs: `make test` says the same of the same code. What no fixed
# examples meet is looked for by `make fuzz` (`--hypothesis-profile fuzz`), with a seed that it prints.
settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("COBERT_FUZZ_EXAMPLES", 20_000)),
    derandomize=False,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real test collections, where there is one."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder of real collections beside the project")
    return folder


@pytest.fixture(scope="module")
def hub():
    """One loopback Hub for the tests of a file, each with repositories of its own."""
    with LoopbackHub() as server:
        yield server


@pytest.fixture
def refuse(capsys):
    """Runs a command that must end with one line and exit code 1, and gives that line."""

    from modeling_cobert import cli

    def run(*argv) -> str:
        capsys.readouterr()  # what the test itself has printed
        with pytest.raises(SystemExit) as ended:
            cli.main(list(map(str, argv)))
        err = capsys.readouterr().err
        assert ended.value.code == 1, err
        lines = [line for line in err.splitlines() if not line.startswith(("WARNING", "INFO"))]
        assert len(lines) == 1 and lines[0].startswith("error: "), err
        return lines[0]

    return run
