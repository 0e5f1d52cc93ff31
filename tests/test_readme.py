"""The README's script runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.slow
def test_the_script_trains_logs_and_checkpoints(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text(block + "print('ACCURACY', float(trainer.callback_metrics['valid/accuracy']))\n")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=180, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("ACCURACY")[1]) > 0.8
    (metrics,) = tmp_path.glob("logs/**/metrics.csv")
    assert len(metrics.read_text().splitlines()) > 20
    assert "test/personal_accuracy" in metrics.read_text().splitlines()[0]
    assert list(tmp_path.glob("logs/**/*.ckpt"))


def test_commands_in_the_readme_exist() -> None:
    from flstudy.cli import COMMANDS

    assert set(re.findall(r"`flstudy (\w+)", README)) <= set(COMMANDS)
    targets = set(re.findall(r"^([\w-]+):.*##", (Path(__file__).parents[1] / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([\w-]+)", README)) <= targets


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 110
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (root / link).exists(), link


def test_what_it_compares_is_what_the_data_of_the_study_carry() -> None:
    from flstudy.reproduction.claims import read_claims, refuted

    in_short = {"In short": read_claims(Path(__file__).parents[1] / "tune_configs" / "together")["In short"]}
    assert refuted(in_short) == []
    for sentence in in_short["In short"]:
        assert str(sentence).rstrip(".") in " ".join(README.split())


def test_what_it_says_of_the_papers_tables_and_figures_is_what_their_lines_say() -> None:
    from flstudy.reproduction.counterparts import in_short, read_all

    assert in_short(read_all(Path(__file__).parents[1] / "tune_configs")) in README
