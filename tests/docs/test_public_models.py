"""The scripts that federate models of other packages: short, they learn, and send what is trained alone."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.blocks import files_of

SCRIPTS = files_of("public_models.md")
NEEDS = {"mobilenet.py": "torchvision", "vit.py": "transformers", "bert.py": "transformers", "lora.py": "peft"}
CHANCE = {"mobilenet.py": 2.30, "vit.py": 2.30, "bert.py": 0.69, "lora.py": 0.69}
"""Losses of a model that gives each of the classes the same probability."""


def test_each_script_is_of_at_most_fifteen_lines():
    assert SCRIPTS.keys() == NEEDS.keys()
    for name, text in SCRIPTS.items():
        assert len([line for line in text.splitlines() if line and not line.startswith("#")]) <= 15, name


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_learns(name, tmp_path):
    pytest.importorskip(NEEDS[name], reason="needs the extra: pip install '.[models]'")
    (tmp_path / name).write_text(SCRIPTS[name])
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=1800, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    numbers = [float(number) for number in re.findall(r"tensor\(([\d.]+)", done.stdout.splitlines()[-1])]
    assert numbers[0] < 0.9 * CHANCE[name]
    assert len(numbers) == (2 if name == "lora.py" else 1)


@pytest.mark.slow
def test_of_a_model_with_adapters_the_adapters_are_sent(tmp_path):
    peft = pytest.importorskip("peft", reason="needs the extra: pip install '.[models]'")
    names: dict = {}
    text = SCRIPTS["lora.py"].replace("max_epochs=20", "max_epochs=1, logger=False, enable_checkpointing=False")
    exec(compile(text, "lora.py", "exec"), names)
    network = names["Net"]().net
    assert isinstance(network, peft.PeftModel)
    trained, all_parameters = network.get_nb_trainable_parameters()
    assert trained < all_parameters / 4
    assert names["trainer"].callback_metrics["traffic/up_bytes"] == 10 * trained * 4
