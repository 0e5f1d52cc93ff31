"""Everything that a study can name has somebody to cite, or says that it has not."""

import re
from importlib import import_module

import pytest

from flstudy.config.registry import ROOTS
from flstudy.config.schema import class_names
from flstudy.reporting.sections.citations import STATISTICS, TOOLS, bibtex, citations, cited, names_used, references
from flstudy.study import load_study


@pytest.mark.parametrize("key", [key for key in ROOTS if key != "task"])
def test_every_class_that_a_config_can_name_says_itself_whom_to_cite(key):
    """Not by inheritance: a variant of a method most often has authors of its own."""
    room = import_module(ROOTS[key].module)
    missing = [name for name in class_names(key) if "citations" not in vars(getattr(room, name))]
    assert not missing, f"give each `citations`, () where there is nobody to cite: {', '.join(missing)}"


def test_every_key_has_an_entry_and_every_entry_a_use():
    used = {key for keys in cited().values() for key in keys} | set(TOOLS.values()) | set(STATISTICS.values())
    assert used | {"watanabe2023", "demsar2006"} == set(references())


@pytest.mark.parametrize("key", references())
def test_entries_are_well_formed(key):
    entry = references()[key]
    assert re.match(rf"@(inproceedings|article|misc)\{{{key},\n", entry)
    assert entry.count("{") == entry.count("}")
    for name in ("author", "title", "year"):
        assert re.search(rf"\b{name}\s+= \{{", entry), name
    assert entry.isascii()  # for the BibTeX of old
    assert re.search(r"year\s+= \{(\d+)\}", entry)[1] == re.search(r"\d{4}", key)[0]


def test_a_study_cites_what_it_used(searched):
    used_by = {citation.key: citation.used for citation in citations([load_study(searched)], importances=True)}
    assert used_by["reddi2021"] == ("FedYogi",)
    assert used_by["panchal2023"] == ("Flash", "SuddenDrift")
    assert {"mcmahan2017", "alpaydin1998", "hsu2019", "bergstra2011", "li2020asha", "watanabe2023"} <= set(used_by)
    assert set(TOOLS.values()) <= set(used_by)
    assert not {"karimireddy2020", "deb2002", "demsar2006"} & set(used_by)
    text = bibtex(citations([load_study(searched)]))
    assert text.count("@") == len(re.findall(r"^@\w+\{", text, re.M))
    assert "% Flash, SuddenDrift\n@inproceedings{panchal2023," in text


def test_a_class_of_ones_own_is_nobodys(tmp_path, write_study, trial):
    folder = write_study(tmp_path / "s", [trial("0", "MyOwn")], study={"sampler": {"class_path": "a.b.Mine"}})
    keys = {citation.key for citation in citations([load_study(folder)])}
    assert keys == set(TOOLS.values()) | set(STATISTICS.values())


def test_an_arm_is_cited_by_its_class(tmp_path, write_study, trial):
    """FedAvgM-beta-0.5 was cited as the class 5, and an arm with a name of its own not at all."""
    arms = {"FedAvgM-beta-0.5": {"class_path": "FedAvgM"}, "Mild": {"class_path": "FedYogi"}, "lion.FedYogi": {}}
    arms["lion.FedYogi"] = {"class_path": "lion.FedYogi"}  # a variant that has its paper's name is nobody's
    drifts = {"SuddenDrift-round-2": {"class_path": "SuddenDrift", "init_args": {"round": 2}}}
    search = {"algorithm": {"choice": list(arms)}, "population.drift": {"choice": drifts}}
    chosen = {"population.drift": "SuddenDrift-round-2"}
    trials = [trial(str(n), name, overrides={"algorithm": name, **chosen}) for n, name in enumerate(arms)]
    folder = write_study(tmp_path / "s", trials, study={"arms": arms, "search": search})
    used_by = {citation.key: citation.used for citation in citations([load_study(folder)])}
    assert names_used(load_study(folder))[:4] == ["FedAvgM", "FedYogi", "lion.FedYogi", "SuddenDrift"]
    assert used_by["reddi2021"] == ("FedYogi",)
    assert set(cited()["FedAvgM"]) <= set(used_by)
