"""Joining a cluster: what its workers are told, and what a user is told where there is none."""

import pytest
import ray

from flstudy.config import ConfigError
from flstudy.config.sections import Resources
from flstudy.tuning.cluster import cluster


def test_a_cluster_that_refuses_is_told_in_a_sentence_and_gets_no_password(monkeypatch):
    asked = {}

    def refuse(**options):
        asked.update(options)
        raise ConnectionError("no answer\nand pages more")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setenv("PGPASSWORD", "secret")
    with (
        pytest.raises(ConfigError, match=r"got 'head:6379' \(no answer\): run 'ray start") as refusal,
        cluster(Resources()),
    ):
        pass
    assert "\n" not in str(refusal.value)
    assert "secret" not in str(asked)
