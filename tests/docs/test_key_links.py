"""Links from the keys of YAML blocks to the reference: each leads to its line, and nothing else is linked."""

import importlib.util

import pytest
import yaml

from tests.docs.blocks import DOCS


@pytest.fixture(scope="module")
def key_links():
    """docs/key_links.py as a module."""
    spec = importlib.util.spec_from_file_location("key_links", DOCS / "key_links.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "anchors"),
    [
        ("rounds: 60", ["rounds"]),
        ("population: {clients: 20, drift: null}", ["population", "population.clients", "population.drift"]),
        (
            "algorithm: {class_path: Flash, init_args: {tau: 0.1, lr: 0.1}}",
            ["algorithm", "flash", "flash", "flash.tau", "flash.lr"],
        ),
        (
            "population: {drift: {class_path: SuddenDrift, init_args: {change: {class_path: Rotation}}}}",
            ["population", "population.drift", "suddendrift", "suddendrift", "suddendrift.change", "rotation"],
        ),
        ("study: {search: {rounds: {choice: [1]}}}", ["study", "study.search", "rounds", None]),
        ("study: {search: {algorithm.tau: {uniform: [0, 1]}}}", ["study", "study.search", "algorithm", None]),
        ("study: {presets: {FedYogi: {tau: 0.1}}}", ["study", "study.presets", "fedyogi", "fedyogi.tau"]),
        (
            "study: {arms: {Mine: {class_path: FedYogi, init_args: {beta1: 0.5}, presets: [{lr: 0.1}]}}}",
            ["study", "study.arms", None, "fedyogi", "fedyogi", "fedyogi.beta1", "fedyogi", "fedyogi.lr"],
        ),
        ("task: {class_path: ./mine.py:Net, init_args: {hidden: 8}}", ["task", None, None, None]),
        ("nothing: {of: ours}", [None, None]),
    ],
)
def test_a_key_leads_to_its_line(key_links, text, anchors):
    assert list(key_links.anchors_of(yaml.compose(text))) == anchors


@pytest.mark.parametrize("text", ["{broken", "- a\n- list", "# nothing"])
def test_what_is_no_config_stays_as_it_is(key_links, text):
    block = f'<div class="highlight"><pre><code>{text}</code></pre></div>'
    assert key_links.linked(block, "config.html") == block
