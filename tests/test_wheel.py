"""The installed wheel, away from the checkout: the README's environment in a file of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toy import README, code_block

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel's content, as an installer would unpack it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def call(installed: Path, cwd: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=120
    )


def test_readme_environment_runs_from_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    source = code_block('"""Choose k of n items')
    assert len(source.splitlines()) <= 80
    (tmp_path / "my_env.py").write_text(source)
    where = call(installed, tmp_path, "import gfn, configs; print(gfn.__file__, configs.__file__)")
    assert where.stdout.count(str(installed)) == 2
    target = ["env=custom", "env._target_=my_env.Subsets"]
    checked = call(installed, tmp_path, "from experiments.check import cli; cli()", *target)
    assert checked.returncode == 0, checked.stderr
    assert "keeps its contract" in checked.stdout
    train = "from experiments.train import cli; cli()"
    done = call(installed, tmp_path, train, *target, "env.n=6", "env.k=3", "trainer.steps=200", "run=out")
    assert done.returncode == 0, done.stderr
    readme = (tmp_path / "out/README.md").read_text()
    assert "my_env.Subsets" in readme
    tv = float(readme.split("| eval/tv | ")[1].split(" |")[0])
    assert tv < 0.05  # measured 0.005–0.02 over seeds; the untrained policy has more than 0.2
    assert (tmp_path / "out/figures/distribution.png").exists()


def test_readme_python_example_runs(installed: Path, tmp_path: Path) -> None:
    source = code_block("from envs.hypergrid")
    assert len([line for line in source.splitlines() if line]) <= 12
    done = call(installed, tmp_path, source)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.02


def test_ci_runs_the_lines_of_the_readme() -> None:
    script = (ROOT / ".ci/run").read_text()
    line = "pip install -c constraints.txt -e '.[dev]' && pytest"
    assert line in README
    assert line.replace("install", "install -q") in script
    assert "pip install -c constraints.txt -e . && gfn-train" in README
