"""The wheel, built and installed into a clean environment, runs the lab there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_runs_the_lab_in_a_clean_environment(tmp_path):
    def run(*command: str | Path) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            list(map(str, command)),
            cwd=tmp_path,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"whyformer/report/schemas/report-1.json", "whyformer/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "bench"))]

    run(sys.executable, "-m", "venv", tmp_path / "clean")
    bin_ = tmp_path / "clean" / ("Scripts" if os.name == "nt" else "bin")
    run(bin_ / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    told = run(bin_ / "whyformer", "lab", "--json", "report.json")
    assert told.endswith(": YES\n")
    assert (tmp_path / "report.json").is_file()
    assert Path(run(bin_ / "python", "-c", "import whyformer; print(whyformer.__file__)")).is_relative_to(
        tmp_path
    )
