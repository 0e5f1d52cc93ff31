"""Federated Parquet by URI gives the bits of the folder that was sent there, and a node copies it once."""

import hashlib
import json
import threading

import pytest
import torch

from flstudy.config.values import anchored
from flstudy.population import FederatedParquet
from flstudy.preparation.command import main
from flstudy.preparation.prepare import prepare
from flstudy.remote import RemoteFolder
from tests.buckets import DENIED, Door, s3_server
from tests.preparation.test_prepare import table_file, write_table


@pytest.fixture(scope="module")
def server():
    with s3_server() as port:
        yield port


@pytest.fixture
def door(server, tmp_path, monkeypatch):
    """The door to a bucket, as this process's environment names it, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    with Door(server) as bucket_door:
        for name, value in {**bucket_door.account, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        yield bucket_door


def sent(tmp_path, uri, capsys):
    """A data set in the bucket, as the command sends it."""
    write_table(tmp_path / "originals", "csv")
    arguments = ["--source", "originals", "--file", "data.csv", "--to", uri]
    assert main(["prepare", "TableFile", *arguments]) == 0
    return capsys.readouterr().out, arguments


@pytest.mark.slow
def test_a_copy_has_the_bits_of_the_folder(door, tmp_path, capsys):
    uri = "s3://bucket/data/table"
    output, arguments = sent(tmp_path, uri, capsys)
    assert f"dataset: {{class_path: FederatedParquet, init_args: {{path: {uri}}}}}" in output
    assert main(["prepare", "TableFile", *arguments]) == 0
    assert "prepared before from the same files" in capsys.readouterr().out
    prepare(table_file(tmp_path / "originals"), tmp_path / "here")
    mine, theirs = FederatedParquet(path=str(tmp_path / "here")), FederatedParquet(path=uri)
    assert (mine.shape, mine.classes) == (theirs.shape, theirs.classes)
    for left, right in zip(mine.load(0, 4), theirs.load(0, 4), strict=True):
        if isinstance(left, torch.Tensor):
            assert torch.equal(left, right)
    assert torch.equal(torch.as_tensor(mine.load(0, 4).ranges.starts), torch.as_tensor(theirs.load(0, 4).ranges.starts))
    assert main(["describe", uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 5


@pytest.mark.slow
def test_a_node_copies_once_whoever_asks(door, tmp_path, capsys):
    uri = "s3://bucket/data/once"
    sent(tmp_path, uri, capsys)
    door.read.clear()
    together, columns = threading.Barrier(4), []

    def ask():
        together.wait()
        columns.append(FederatedParquet(path=uri).load(0, 4).x)

    crowd = [threading.Thread(target=ask) for _ in range(4)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert len(columns) == 4
    files = [name for name in door.read if name.endswith((".npy", "clients.parquet"))]
    assert sorted(files) == [f"data/once/{name}" for name in ("clients.parquet", "columns/x.npy", "columns/y.npy")]
    assert not any("samples" in name for name in door.read)


@pytest.mark.slow
def test_what_is_prepared_anew_is_copied_anew(door, tmp_path, capsys):
    uri = "s3://bucket/data/anew"
    sent(tmp_path, uri, capsys)
    before = FederatedParquet(path=uri).load(0, 4).x.clone()
    text = (tmp_path / "originals" / "data.csv").read_text().splitlines()
    (tmp_path / "originals" / "data.csv").write_text("\n".join([*text, *text[1:]]))
    main(["prepare", "TableFile", "--source", "originals", "--file", "data.csv", "--to", uri])
    assert len(FederatedParquet(path=uri).load(0, 4).x) == 2 * len(before)
    door.is_open = False  # what cannot be asked is as it was
    assert len(FederatedParquet(path=uri).load(0, 4).x) == 2 * len(before)


@pytest.mark.slow
def test_what_cannot_be_read_is_refused_in_a_sentence(door, tmp_path, capsys, monkeypatch):
    uri = "s3://bucket/data/harmed"
    with pytest.raises(ValueError, match="there is no prepared data set in s3://bucket/data/harmed"):
        FederatedParquet(path=uri).load(0, 4)
    with pytest.raises(ValueError, match="there is no such bucket"):
        FederatedParquet(path="s3://nothing/x").load(0, 4)
    sent(tmp_path, uri, capsys)
    remote = RemoteFolder.open(uri)
    whole = remote.read("columns/y.npy")
    remote.write("columns/y.npy", whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"columns/y\.npy is damaged"):
        FederatedParquet(path=uri).load(0, 4)
    remote.write("columns/y.npy", whole)
    assert len(FederatedParquet(path=uri).load(0, 4).y)
    metadata = json.loads(remote.read("metadata.json"))
    metadata["files"] = {"../escaped": {"bytes": 1, "sha256": hashlib.sha256(b"").hexdigest()}}
    remote.write("metadata.json", json.dumps(metadata).encode())
    with pytest.raises(ValueError, match="outside of the folder"):
        FederatedParquet(path=uri).load(0, 4)
    door.refuses = DENIED
    with pytest.raises(ValueError, match=r"--to: .* access is denied"):
        main(["prepare", "TableFile", "--source", "originals", "--file", "data.csv", "--to", uri])


def test_a_uri_is_relative_to_nothing(tmp_path):
    values = {"class_path": "FederatedParquet", "init_args": {"path": "s3://bucket/x"}}
    assert anchored(values, tmp_path) == values
