import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.types import Document


def test_documents_are_found_by_id(tmp_path):
    documents = [Document(f"d{i}", f"T{i}", f"line\n{i} é ☃") for i in range(100)]
    file = DocumentFile.build(iter(documents), tmp_path / "file")
    assert len(file) == 100
    assert [file.get(f"d{i}") for i in range(100)] == documents
    assert file.get("d100") is None
    assert {file.at(i) for i in range(100)} == set(documents)
    file.close()
    turned = DocumentFile.build(reversed(documents), tmp_path / "turned")
    same = DocumentFile.build([], tmp_path / "file")  # what is there is taken as it is
    assert [turned.at(i) for i in range(100)] == [same.at(i) for i in range(100)]


def test_an_unfinished_one_leaves_nothing(tmp_path):
    def broken():
        yield Document("a", "", "b")
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        DocumentFile.build(broken(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    assert len(DocumentFile.build([], tmp_path / "file")) == 0


def test_a_real_corpus(tmp_path, data_dir):
    dataset = DatasetDirectory(data_dir / "scifact")
    file = DocumentFile.build(dataset.documents(), tmp_path / "file")
    assert len(file) == 5183
    assert all(file.get(document.doc_id) == document for document in dataset.documents())
